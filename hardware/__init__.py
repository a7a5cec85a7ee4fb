"""Facts: accelerators, links, fabrics and clusters, each figure with its source and date."""
