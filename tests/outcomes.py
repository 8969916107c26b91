"""What a launch of own_tasks.py has left in a store, for the tests of drivers and executors."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from depthrate.storage.query import Results
from depthrate.storage.store import Store


def committed(files: Store) -> list[tuple[Any, ...]]:
    """(depth, nc1) of each committed trial."""
    return Results(files).sql("select depth, nc1 from results order by depth, nc1").fetchall()


def raw_rows(files: Store) -> int:
    """Rows of all trials files as they lie there: a view would hide a trial that was run twice."""
    return sum(pq.read_metadata(files.full_path(path)).num_rows for path in files.list("trials"))


def states(files: Store) -> list[str]:
    """The states of all attempts."""
    return sorted(row[0] for row in Results(files).sql("select state from attempts").fetchall())
