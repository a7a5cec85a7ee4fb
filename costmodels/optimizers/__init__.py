"""Optimizers: what their states take, how they shard, what a step of them costs."""
