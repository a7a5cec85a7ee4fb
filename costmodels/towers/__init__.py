"""What stands before the layers of a model and has layers of its own."""
