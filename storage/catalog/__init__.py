"""A store's data on sweeps other than rows: specs, requested trials, tags, code and decisions on it, removals, fits.

Imports `files` and `tables`. Start with `specs`.
"""
