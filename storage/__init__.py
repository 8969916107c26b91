"""Rows in, rows out: the store on any fsspec URL. fsspec, pyarrow and duckdb live here."""
