"""Plans of sharded replicas over several pools, opened again."""
