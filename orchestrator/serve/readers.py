"""Stores opened for SQL, of which as many questions run at once as there are: one is used by one thread at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results

AT_ONCE = 2


class BusyError(Exception):
    """All are in use, and stay so."""


class Readers:
    """Several openings of one store, each of which keeps what it has read."""

    def __init__(self, store: Store):
        self._store = store
        self._free: queue.LifoQueue[Results | None] = queue.LifoQueue()
        for _ in range(AT_ONCE):
            self._free.put(None)  # opened when it is needed

    @contextmanager
    def fresh(self, patience_s: float) -> Iterator[Results]:
        """Lend one that has seen what is committed by now.

        Raises:
            BusyError: none came free in this time.
            OSError, StoreError: the store does not answer.
        """
        try:
            results = self._free.get(timeout=patience_s)
        except queue.Empty:
            raise BusyError(f"{AT_ONCE} questions are being answered already; ask again in a while") from None
        try:
            self._store.require_there()
            results = results_of(self._store) if results is None else results.refresh()
            yield results
        finally:
            self._free.put(results)
