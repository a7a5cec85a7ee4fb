"""Why no plan is left, and what would help."""
