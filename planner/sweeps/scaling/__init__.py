"""Scaling curves: the best plan at each number of devices, sequence length or depth."""
