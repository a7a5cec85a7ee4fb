"""Pipeline schedules: stages, bubbles, the order of micro-batches in time."""
