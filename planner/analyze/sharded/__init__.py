"""Plans of sharded replicas over several pools: explained, drawn in time, moved, read back."""
