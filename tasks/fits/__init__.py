"""Rates: curves fitted to metrics over depth, with their uncertainty."""

MAX_VARIABLES = 3
"""Maximum number of variables of a fit."""
