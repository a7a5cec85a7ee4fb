"""Sweeps: many full searches over fields of the model, the job and the cluster."""
