"""Where shards are evaluated: in this process, in several, with Ray."""
