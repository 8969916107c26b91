"""Measurements: a file a family."""
