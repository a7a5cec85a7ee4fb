"""Layers split unevenly over stages."""
