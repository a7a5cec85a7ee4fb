"""Inverse questions: least devices, largest model, longest sequence, the layout step by step."""
