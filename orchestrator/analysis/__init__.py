"""Turn the store's rows into fitted curves: columns, observations, fits and convergence.

Imports `storage`, `sweeps` and `tasks.fits`, and no package above. Entry point: `fit_requests`.
"""
