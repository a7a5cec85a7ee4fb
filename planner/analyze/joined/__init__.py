"""Plans over several pools: why they take what they take, drawn in time, compared, moved."""
