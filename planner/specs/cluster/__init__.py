"""Cluster files: pools, fabric, operations."""
