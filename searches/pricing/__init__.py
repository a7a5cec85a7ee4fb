"""Plans priced shard by shard, and the best few kept."""
