"""The task `dufm`: the deep unconstrained features model, its two closed forms, and which solution training finds."""
