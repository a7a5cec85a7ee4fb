"""Settings that frameworks publish, read by `check`, priced, and ranked beside our own plans."""
