"""Rows in, rows out, on any fsspec URL: rooms from files up to queries and maintenance; no module of its own.

Imports point down: query and maintenance, attempts, commits, catalog, tables, files. fsspec, pyarrow and duckdb live here;
no measurement is named here. Begin with `files.paths` (every path of a store), then
`commits.commit` (the one write that counts).
"""
