"""What commands do that only a service answers: `planner jobs`."""
