"""Models read from, or checked against, the headers of weight files: no weight is loaded."""
