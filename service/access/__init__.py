"""Who calls, what they may, and when it is their turn."""
