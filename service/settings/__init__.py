"""How a service is set up: its options, and the file of its limits."""
