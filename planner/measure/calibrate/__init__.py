"""Fits a calibration to measured runs."""
