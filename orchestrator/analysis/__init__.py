"""From rows of the store to fitted curves: which columns, which observations, which fits, and whether training had converged.

Imports `storage`, `sweeps` and `tasks.fits`; no room above. Begin with `fit_curves`.
"""
