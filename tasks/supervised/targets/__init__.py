"""Targets of the supervised tasks: what a network predicts per sample, how data are prepared, and how layers are measured."""
