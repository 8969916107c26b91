"""The tasks `ufm` and `mufm`: the unconstrained features model, free or held to its input, and their exact optima."""
