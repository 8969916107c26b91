"""Rates: curves fitted to metrics over depth, with their uncertainty."""

MAX_VARIABLES = 3
"""Maximum number of variables of a fit."""
FORMS = ("product", "sum")
"""Default forms in several variables."""
LOG_FORMS = {"log_product": None, "log2_product": 2.0}
"""Form with a logarithm of the first variable -> its power. None: free."""
ALL_FORMS = (*FORMS, *LOG_FORMS, "proportional")
"""All forms in several variables."""
