"""The planner as a library."""
