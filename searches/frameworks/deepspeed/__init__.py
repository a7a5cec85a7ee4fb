"""What DeepSpeed does not run: layouts and keys of its JSON."""
