"""Formats that are read in place of our own files."""
