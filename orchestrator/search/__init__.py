"""Searches: studies as the store has them, and proposals by Optuna."""
