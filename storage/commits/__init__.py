"""Which rows count: a commit is one write, a snapshot is what is committed at a moment, a manifest what compaction replaced.

Imports `files`, `tables` and `catalog`. Begin with `commit`, then `snapshot`.
"""
