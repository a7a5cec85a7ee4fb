"""An existing run, judged."""
