"""Megatron-LM: its flags, what is written with them, and scripts of users."""
