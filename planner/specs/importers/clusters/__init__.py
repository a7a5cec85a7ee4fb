"""Dumps of a cluster to a cluster file."""
