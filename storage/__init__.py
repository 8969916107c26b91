"""Tables on any fsspec URL: sub-packages from files up to queries and maintenance, and no modules.

Imports point down: query and maintenance, attempts, commits, catalog, tables, files. Only this package uses fsspec,
pyarrow and duckdb, and it names no metric. Start with `files.paths` (every path of a store), then `commits.commit` (the
one write that makes trials visible).

Every function that reads or writes a store raises OSError if the store refuses. A docstring names it only if the state
that this leaves is not obvious.
"""
