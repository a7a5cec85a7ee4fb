"""Jobs over several pools: their plans, what layers cost on each pool, step times and memory."""
