"""The snapshot that queries read: it stays the same while compactions replace its files, and drops files that prove corrupt."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set
from copy import copy
from dataclasses import replace

from depthrate.storage.catalog.removals import RemovalKind
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.commits.visible_commits import Problem, find_corrupt_files, without_rows
from depthrate.storage.files.paths import removal_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import STATE_COLUMNS, row_keys

log = logging.getLogger("depthrate")


class SnapshotReader:
    """Takes the snapshot of a store that queries read, and takes it again if a file cannot be read."""

    def __init__(self, store: Store, snapshot: Snapshot | None = None):
        """Take the snapshot, or use that of the caller."""
        self.store = store
        self._corrupt: set[str] = set()
        columns = (*STATE_COLUMNS, "task", "task_version")
        self._cache = SnapshotCache(columns, commit_columns=(*columns, "params"), keeps_files=True)
        self.snapshot = self._scan() if snapshot is None else snapshot

    def _scan(self) -> Snapshot:
        return take_snapshot(self.store, ignore=self._corrupt, cache=self._cache)

    def refresh(self) -> None:
        """Take the snapshot again, with the commits made since."""
        self.snapshot = self._scan()

    def rescan(self, tables: Iterable[str]) -> bool:
        """Take the snapshot again after a query failed to read a file of these tables, without commits made since.

        Return whether the file was replaced by a compaction or is corrupt.
        """
        named = [file for table in tables for file in self.snapshot.files(table)]
        previous = self.snapshot
        self.refresh()
        if previous.listing != self.snapshot.listing:
            self._pin(previous)
        if {source.path for source in previous.sources} != {source.path for source in self.snapshot.sources}:
            return True
        corrupt = find_corrupt_files(self.store, named)
        self._corrupt.update(corrupt)
        if corrupt:
            self.refresh()
        return bool(corrupt)

    def without(self, rows: Set[tuple[str, str]]) -> SnapshotReader:
        """Return a reader of the same snapshot without some (trial, attempt)."""
        remaining = copy(self)
        remaining._hide(rows)
        return remaining

    def with_removed(self) -> SnapshotReader:
        """Return a reader of the current store including the trials that users removed and that are not purged."""
        complete, removals = copy(self), self.snapshot.removals.removals
        removed = {removal_path(r.removal_id) for r in removals if r.kind is RemovalKind.TRIALS}
        complete._corrupt = self._corrupt | removed
        complete.refresh()
        return complete

    def _pin(self, previous: Snapshot) -> None:
        """Hide rows committed since a previous snapshot.

        If some rows of the previous snapshot are gone, warn that the store has changed.
        """
        before, now = set(row_keys(previous.trials)), set(row_keys(self.snapshot.trials))
        gone, new = before - now, now - before
        if gone:
            trial_ids = {trial_id for trial_id, _ in gone}
            new = {row for row in new if row[0] not in trial_ids}  # another attempt has committed them since
            message = (
                f"the store has changed since it was opened: {len(gone)} of {len(before)} trials are deleted or corrupt. All "
                "further results are without them. Repeat earlier queries"
            )
            self.snapshot.problems.append(Problem(self.store.url, message))
            log.warning("%s: %s", self.store.url, message)
        if new:  # hidden even then: if trials come and go, a query would never read all files that it has listed
            self._hide(new)

    def _hide(self, rows: Set[tuple[str, str]]) -> None:
        sources = [without_rows(source, rows) for source in self.snapshot.sources]
        self.snapshot = replace(self.snapshot, sources=[source for source in sources if source.trials.num_rows])
