"""Reads what users already have: model configurations, inventories of clusters, launch scripts."""
