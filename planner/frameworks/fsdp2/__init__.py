"""PyTorch FSDP2 through Accelerate: its configuration, written and read."""
