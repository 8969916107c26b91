"""How sweeps are getting on and what they have cost, read from the store.

Imports `attempts`, `analysis` and `console`. Begin with `status`.
"""
