"""What Megatron-LM does not run: layouts and flags."""
