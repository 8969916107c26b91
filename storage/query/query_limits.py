"""What a query may take: memory, of this process and its database, room on the disk, and time."""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb

MEMORY_SHARE = "50%"
"""Of the machine's memory, that DuckDB takes where nothing else is said; what it needs beyond goes to the disk where it can."""
DISK_GB = 50.0
"""What a query may take of the disk where no memory limit is given."""
DISK_PER_MEMORY = 10.0
"""What a query may take of the disk, in multiples of its memory limit."""
_BESIDE_GB, _PER_THREAD_GB = 1.0, 0.1
"""Address space that DuckDB and Arrow reserve beside the memory of a query: once, and for each thread."""


@contextmanager
def limited_memory(memory_gb: float | None) -> Iterator[None]:
    """Limit the address space of this process, beyond what it has now, to what a query may take and its threads reserve.

    DuckDB counts only the memory of its tables; what a function such as `repeat` makes of one value is not counted.
    Without `memory_gb` a query may take half of the machine's memory. Only Linux says how much a process has.
    """
    if sys.platform != "linux":
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    if memory_gb is None:
        memory_gb = 0.5e-9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    beside = memory_gb + _BESIDE_GB + _PER_THREAD_GB * (os.cpu_count() or 1)
    most = pages * resource.getpagesize() + int(1e9 * beside)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *allowed]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@cache
def database(pid: int, memory_gb: float | None) -> duckdb.DuckDBPyConnection:
    """Return this process's empty database, made once since that takes 30 ms; a forked process needs one of its own."""
    made = duckdb.connect(":memory:")
    escaped = _temporary_folder(pid).replace("'", "''")
    made.execute(f"set temp_directory = '{escaped}'")
    made.execute(
        f"set max_temp_directory_size = '{DISK_GB if memory_gb is None else DISK_PER_MEMORY * memory_gb:.6f}GB'"
    )
    made.execute(f"set memory_limit = '{MEMORY_SHARE if memory_gb is None else f'{memory_gb:.6f}GB'}'")
    # SQL reaches the views of its connection and nothing else: no files, no Python variables, no settings.
    made.execute("set python_enable_replacements = false")
    made.execute("set enable_external_access = false")
    made.execute("set lock_configuration = true")
    return made


@cache
def _temporary_folder(pid: int) -> str:
    """Return a folder of this user alone; DuckDB's own choice lies in the working folder, and SQL may read in it."""
    folder = tempfile.mkdtemp(prefix="depthrate-sql-")
    atexit.register(remove_temporary)
    return folder


def remove_temporary() -> None:
    """Remove what queries of this process have written beside memory; it ends now."""
    shutil.rmtree(_temporary_folder(os.getpid()), ignore_errors=True)


@contextmanager
def query_timeout(connection: duckdb.DuckDBPyConnection, timeout_s: float | None) -> Iterator[None]:
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
