"""Kueue asks the planner: a controller of admission checks, with the standard library alone."""
