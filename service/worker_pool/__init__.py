"""Worker processes, within bounds of memory and time."""
