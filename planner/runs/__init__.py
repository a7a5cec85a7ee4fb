"""Existing runs as people have them: launch scripts, framework configurations."""
