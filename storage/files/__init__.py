"""Bytes at a URL: the store's files, every path of it, JSON and Parquet, folders of data.

Imports nothing else of storage. Begin with `paths`.
"""
