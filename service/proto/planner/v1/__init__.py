"""Version 1 of the interface. The stubs are written by scripts/proto."""
