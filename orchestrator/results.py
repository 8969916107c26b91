"""A store opened for reading, with the columns of the tasks that come with depthrate."""

from __future__ import annotations

from depthrate.orchestrator.measurements import builtin_columns
from depthrate.storage.query import Results
from depthrate.storage.store import Store, existing_store


def open_results(url: str | None = None) -> Results:
    """Open a store for reading.

    Raises:
        StoreError: there is no store at `url`.
    """
    return results_of(existing_store(url))


def results_of(store: Store) -> Results:
    """Return a store's results: the columns that every file has, and those that tasks added to this store."""
    return Results(store, builtin_columns())
