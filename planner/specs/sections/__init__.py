"""Sections of a model file: what each means, and what contradicts in it."""
