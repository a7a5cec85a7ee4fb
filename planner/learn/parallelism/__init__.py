"""One calculator a module: the traffic of one kind of parallelism."""
