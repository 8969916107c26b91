"""Rates: curves fitted to metrics over depth, with their uncertainty."""
