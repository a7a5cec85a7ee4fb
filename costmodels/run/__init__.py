"""Figures of a whole run: money, energy, failures."""
