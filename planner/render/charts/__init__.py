"""Figures of reports: one module a kind, each with its data and what it says."""
