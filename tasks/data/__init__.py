"""Data sets: sources, formats and preparation."""
