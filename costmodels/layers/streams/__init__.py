"""Several residual streams in place of one: what they add to layers and to the ends."""
