"""What a search may be told: values of axes, objectives, the `search:` section."""
