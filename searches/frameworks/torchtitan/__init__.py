"""What torchtitan does not run: layouts and fields of its configuration."""
