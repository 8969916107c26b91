"""Open a store for reading with the columns that tasks declare, and parameters added after their first trials."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.orchestrator.analysis.convergence import judgements
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Judge, Results
from depthrate.storage.tables.parameters import AddedParameters
from depthrate.storage.tables.schema import Columns
from depthrate.tasks.interface import Task
from depthrate.tasks.registry import find_task


def open_results(url: str | os.PathLike[str] | None = None) -> Results:
    """Open a store for reading.

    Raises:
        StoreError: No store exists at `url`.
    """
    return results_of(existing_store(url))


def results_of(store: Store, task: Task | None = None, snapshot: Snapshot | None = None) -> Results:
    """Return a store's results with the built-in columns, the task's columns and columns that tasks added to this store.

    Args:
        snapshot: Snapshot to read, without tags and with all columns of the trials. Default: the current state.
    """
    return Results(store, *declared_by(task), snapshot)


def declared_by(task: Task | None = None) -> tuple[Columns, AddedParameters, Judge]:
    """Return the columns of depthrate's tasks and of one other task, the lookup of parameters added later, and the judge."""

    def find(name: str) -> Task | None:
        return task if task is not None and task.name == name else find_task(name)

    def added(name: str, version: int) -> Mapping[str, Any]:
        match = find(name)
        return {} if match is None or match.version != version else match.schema.added_later

    columns = builtin_columns() if task is None else columns_of(task)
    return columns, added, partial(judgements, find_task=find)
