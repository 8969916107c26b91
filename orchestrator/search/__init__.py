"""Searches: studies in the store, and proposals by Optuna."""
