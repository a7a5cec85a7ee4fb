"""Rows of `model_types` by family."""
