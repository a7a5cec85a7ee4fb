"""Layers put together of two sublayers: what mixes positions, and what feeds forward."""
