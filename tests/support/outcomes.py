"""What a launch of own_tasks.py has left in a store, for the tests of drivers and executors."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store


def committed(store: Store) -> list[tuple[Any, ...]]:
    """(depth, nc1) of each committed trial."""
    return results_of(store).sql("select depth, nc1 from results order by depth, nc1").fetchall()


def raw_rows(store: Store) -> int:
    """Rows of all trials files as they lie there: a view would hide a trial that was run twice."""
    return sum(pq.read_metadata(store.full_path(path)).num_rows for path in store.list("trials"))


def states(store: Store) -> list[str]:
    """The states of all attempts."""
    return sorted(row[0] for row in results_of(store).sql("select state from attempts").fetchall())
