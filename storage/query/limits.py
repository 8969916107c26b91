"""What a query may take: memory, of this process's database, and time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import duckdb

MEMORY_SHARE = "50%"
"""Of the machine's memory, that DuckDB takes where nothing else is said; what it needs beyond goes to the disk where it can."""


@cache
def database(pid: int, memory_gb: float | None) -> duckdb.DuckDBPyConnection:
    """Return this process's empty database, made once since that takes 30 ms; a forked process needs one of its own."""
    made = duckdb.connect(":memory:")
    made.execute(f"set memory_limit = '{MEMORY_SHARE if memory_gb is None else f'{memory_gb:.6f}GB'}'")
    # SQL reaches the views of its connection and nothing else: no files, no Python variables, no settings.
    made.execute("set python_enable_replacements = false")
    made.execute("set enable_external_access = false")
    made.execute("set lock_configuration = true")
    return made


@contextmanager
def ended_after(connection: duckdb.DuckDBPyConnection, timeout_s: float | None) -> Iterator[None]:
    """End the query that runs on a connection in here if it takes longer; that raises `duckdb.InterruptException`."""
    if timeout_s is None:
        yield
        return
    timer = threading.Timer(timeout_s, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it holds the connection: at the end of a process DuckDB would tell of what it still holds
