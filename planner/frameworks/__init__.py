"""Training frameworks: what is written for them, what is read of them, their releases."""
