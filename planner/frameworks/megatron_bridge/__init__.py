"""Megatron-Bridge: recipes."""
