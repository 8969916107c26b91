"""Visibility of rows: a commit is one write, a snapshot is a view of all commits, and a manifest replaces many commits.

Imports `files`, `tables` and `catalog`. Start with `commit`, then `snapshot`.
"""
