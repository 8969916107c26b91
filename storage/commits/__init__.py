"""Visibility of rows: a commit is one write, a snapshot a view of all commits, a manifest replaces many commits.

Imports `files`, `tables` and `catalog`. Start with `commit`, then `snapshot`.
"""
