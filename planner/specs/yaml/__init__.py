"""YAML documents with line marks, and what is wrong with them."""
