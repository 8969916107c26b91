"""A store's data on sweeps other than rows: specs, requested trials, tags, code, decisions on code, removals, fits.

Imports `files` and `tables`. Start with `specs`.
"""
