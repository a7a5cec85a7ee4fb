"""Collectives and what each parallel axis sends."""
