"""One calculator a module: memory, pipeline, overlap, scaling."""
