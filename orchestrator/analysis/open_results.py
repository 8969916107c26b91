"""A store opened for reading, with what tasks declare: their columns, and what they gained after their first trials."""

from __future__ import annotations

import os

from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results
from depthrate.storage.tables.parameters import Added
from depthrate.storage.tables.schema import Columns
from depthrate.tasks.builtin import builtin_tasks
from depthrate.tasks.task import Task, added_parameters


def open_results(url: str | os.PathLike[str] | None = None) -> Results:
    """Open a store for reading.

    Raises:
        StoreError: there is no store at `url`.
    """
    return results_of(existing_store(url))


def results_of(store: Store, task: Task | None = None) -> Results:
    """Return a store's results: the columns that every file has, the task's, and those that tasks added to this store."""
    return Results(store, *declared_by(task))


def declared_by(task: Task | None = None) -> tuple[Columns, Added]:
    """Return what the tasks that come with depthrate, and one besides, declare: columns, and parameters that came later."""
    tasks = [*builtin_tasks().values(), *([] if task is None else [task])]
    columns = builtin_columns() if task is None else columns_of(task)
    return columns, added_parameters(*tasks)
