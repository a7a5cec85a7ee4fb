"""Plans that are one grid of ranks: like pipelines on unlike pools, and their bound."""
