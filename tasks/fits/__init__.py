"""Rates: curves fitted to measurements over depth, with their uncertainty."""
