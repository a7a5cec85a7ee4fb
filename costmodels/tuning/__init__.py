"""Fine-tuning: adapters that are trained beside weights that stay as they are."""
