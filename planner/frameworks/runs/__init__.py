"""Existing runs as people have them: launch scripts and configurations of any framework."""
