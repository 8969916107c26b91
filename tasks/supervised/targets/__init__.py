"""Targets of the supervised task: what a network predicts for a sample, how data become it, and how it is measured."""
