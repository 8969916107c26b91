"""What a store knows of sweeps beside rows: specs, trials asked for, tags, code and decisions on it, removals, fits.

Imports `files` and `tables`. Begin with `specs`.
"""
