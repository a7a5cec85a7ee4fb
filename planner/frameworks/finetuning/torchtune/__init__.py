"""torchtune: the YAML of its recipes, written and read, and what it cannot say."""
