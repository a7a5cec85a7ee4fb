"""Physics: pure functions from model shape, cluster and a table of plans to time and memory.

numpy and the standard library only. Every term is separate; sums are made at the end.
"""
