"""Published recipes held against the planner: `planner validate --recipes`."""
