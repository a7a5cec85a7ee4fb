"""Jobs over several pools: which pipelines share them, with a proven bound."""
