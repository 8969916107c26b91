"""Tables at any fsspec URL. The package consists of sub-packages only, from files up to queries and maintenance.

Imports point down: query and maintenance, attempts, commits, catalog, tables, files. Only this package uses fsspec,
pyarrow and duckdb, and it names no metric. Start with `files.paths` (every path of a store), then `commits.commit` (the
one write that makes trials visible).

Every function that reads or writes a store raises OSError if the store refuses the operation. A docstring mentions OSError only
if the resulting state is not obvious.
"""
