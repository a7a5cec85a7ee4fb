"""Lower bounds of steps over several pools: what columns of pipelines get done at most."""
