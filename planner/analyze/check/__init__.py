"""Existing runs, judged: verdict of the framework, price, standing, best changes."""
