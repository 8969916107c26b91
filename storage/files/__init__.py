"""Files at a URL: a store's files and paths, JSON and Parquet, data folders.

Imports no other part of storage. Start with `paths`.
"""
