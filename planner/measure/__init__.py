"""Measurements beside predictions: benchmarks, calibration, validation, trials."""
