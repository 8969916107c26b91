"""A store opened for reading, with what tasks declare: their columns, and what they gained after their first trials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results
from depthrate.storage.tables.parameters import AddedParameters
from depthrate.storage.tables.schema import Columns
from depthrate.tasks.interface import Task
from depthrate.tasks.registry import find_task


def open_results(url: str | os.PathLike[str] | None = None) -> Results:
    """Open a store for reading.

    Raises:
        StoreError: there is no store at `url`.
    """
    return results_of(existing_store(url))


def results_of(store: Store, task: Task | None = None, snapshot: Snapshot | None = None) -> Results:
    """Return a store's results: the columns that every file has, the task's, and those that tasks added to this store.

    They are those of now, or without tags those of a `snapshot` with all columns of the trials.
    """
    return Results(store, *declared_by(task), snapshot)


def declared_by(task: Task | None = None) -> tuple[Columns, AddedParameters]:
    """Return what the tasks that come with depthrate, and one besides, declare: columns, and parameters that came later."""

    def added(name: str, version: int) -> Mapping[str, Any]:
        is_given = task is not None and task.name == name
        declared = task if is_given else find_task(name)
        return {} if declared is None or declared.version != version else declared.schema.added_later

    return builtin_columns() if task is None else columns_of(task), added
