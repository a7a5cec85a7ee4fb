"""Data as it is: lengths of samples, and how they fill sequences."""
