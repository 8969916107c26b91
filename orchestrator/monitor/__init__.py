"""Status and cost of sweeps, read from the store.

Imports `attempts`, `analysis` and `console`. Read `status` first.
"""
