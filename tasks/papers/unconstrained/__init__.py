"""The tasks `ufm`, `mufm` and `dufm`: features as parameters, free, held to their input or deep, and their optima."""
