"""What the commands on sizes and shares do: `scale`, `batch-solve` and `allocate`."""
