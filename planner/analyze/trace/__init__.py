"""One step as a trace: drawn from a plan, and measured traces beside it."""
