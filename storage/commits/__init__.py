"""Visibility of rows: a commit is one write, a snapshot holds all commits at a moment, a manifest lists files replaced
by compaction.

Imports `files`, `tables` and `catalog`. Start with `commit`, then `snapshot`.
"""
