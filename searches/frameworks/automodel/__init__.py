"""What NeMo AutoModel does not run: layouts and keys of its recipes."""
