"""Which rank sits on which device of which host."""
