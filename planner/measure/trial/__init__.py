"""Timing a few plans before one is chosen: `planner trial`."""
