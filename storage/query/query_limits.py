"""Limits of a query: the memory of this process and of its database, and disk space."""

import atexit
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from depthrate.storage.tables.custom_columns import quoted_text

MEMORY_SHARE = "50%"
"""Share of the memory that DuckDB may use by default. Queries that need more spill to disk where they can."""
DISK_GB = 50.0
"""Disk space in GB for a query without a memory limit."""
DISK_PER_MEMORY = 10.0
"""Disk space for a query, in multiples of its memory limit."""
_OVERHEAD_GB = 1.0
"""Address space in GB that DuckDB and Arrow reserve once, in addition to the memory of a query."""
_PER_THREAD_GB = 0.1
"""Address space in GB that they reserve per thread."""


@contextmanager
def limited_memory(memory_gb: float | None) -> Iterator[None]:
    """Limit the address space of this process to its current size, the query's memory and the threads' reservations.

    DuckDB counts only the memory of its tables, not the memory of values built by a function such as `repeat`. Without
    `memory_gb` a query may use half of the memory. Only Linux reports a process's size.
    """
    if sys.platform != "linux":
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    if memory_gb is None:
        memory_gb = 0.5e-9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    reserved_gb = memory_gb + _OVERHEAD_GB + _PER_THREAD_GB * (os.cpu_count() or 1)
    max_bytes = pages * resource.getpagesize() + int(1e9 * reserved_gb)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([max_bytes, *allowed]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class _NoPandas:
    """Finder of modules that does not find pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Let pyarrow look for pandas in vain, once: its import takes .2 s, more than most queries.

    Only for a process that hands no pandas objects to pyarrow, which would take their missing values for numbers.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.scalar(True)
    finally:
        sys.meta_path.remove(_NoPandas)


@cache
def database(pid: int, memory_gb: float | None) -> duckdb.DuckDBPyConnection:
    """Return this process's empty database, created only once, since that takes 30 ms. A forked process needs a new one."""
    connection = duckdb.connect(":memory:")
    connection.execute(f"set temp_directory = {quoted_text(_temporary_folder(pid))}")
    connection.execute(
        f"set max_temp_directory_size = '{DISK_GB if memory_gb is None else DISK_PER_MEMORY * memory_gb:.6f}GB'"
    )
    connection.execute(f"set memory_limit = '{MEMORY_SHARE if memory_gb is None else f'{memory_gb:.6f}GB'}'")
    # SQL can access only the views of its connection: no files, no Python variables, no settings.
    connection.execute("set python_enable_replacements = false")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection


@cache
def _temporary_folder(pid: int) -> str:
    """Create a private folder for this user. DuckDB's default folder is in the working folder, where SQL could read it."""
    folder = tempfile.mkdtemp(prefix="depthrate-sql-")
    atexit.register(remove_temporary)
    return folder


def remove_temporary() -> None:
    """Remove the temporary files of this process's queries when it exits."""
    shutil.rmtree(_temporary_folder(os.getpid()), ignore_errors=True)
