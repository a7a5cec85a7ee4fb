"""DeepSpeed: its JSON, written and read."""
