"""Timing a few plans before one is chosen: `planner trial`.

`shortlist` chooses the three plans that together most likely hold the best, `scripts` writes
their short runs, `logs` reads what they printed, `rerank` anchors on it and ranks again.
"""
