"""torchtitan: recipes and job files, written and read."""
