"""The numbers that measurements set: their file, their use, their intervals."""
