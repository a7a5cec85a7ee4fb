"""What the cost model says of itself: records of its terms, and what docstrings hold."""
