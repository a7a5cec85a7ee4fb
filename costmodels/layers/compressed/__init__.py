"""Attention over compressed keys: kinds of layers of DeepSeek-V4."""
