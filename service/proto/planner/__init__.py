"""Package of the interface."""
