"""One process of the service: what it listens at, how it starts and stops."""
