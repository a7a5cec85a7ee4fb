"""Settings of tools that fine-tune: what each changes, and what is refused by its name."""
