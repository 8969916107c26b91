"""Purge removed rows: name the rows that compactions leave out from now on, because no sweep relies on them.

A launch writes the trials it requests and then checks which of them are committed. A purge record first hides its rows from all
sweeps, and then the requested trials and the removals are read again. If a launch or a `restore` and a purge record are written
at the same moment, at least one therefore sees the other: the launch runs the trial itself, or the record is withdrawn. Only
rows of a final record, which passed this check, are left out. Each compaction decides only its own record.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

from depthrate.storage.attempts.clocks import age_s
from depthrate.storage.catalog.removals import Removal, RemovalKind, Removals, Row
from depthrate.storage.catalog.requested_trials import verified_requested_ids
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.paths import new_name, removal_path, removed_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import row_keys

UNDECIDED_S = 3600.0
"""Age in seconds at which a record that is not final was left by a killed compaction. It is deleted, its removals remain."""
EMPTY_S = 86_400.0
"""Minimum age in seconds at which a final record is deleted: a compaction that started before it may still write its rows."""


def purge_removals(store: Store, removals: Removals, retention_s: float) -> bool:
    """Purge rows that were removed more than `retention_s` seconds ago and that no sweep requests. Return whether any were.

    Raises:
        CorruptFileError: The requested trials are unknown, so nothing is purged.
        OSError: The store refused a write. Nothing is lost, and the next purge continues.
    """
    expired = [
        removal
        for removal in removals.removals
        if age_s(store, removal_path(removal.removal_id), removal.removed_at) >= retention_s
    ]
    if not expired:
        return False
    retained = frozenset(row for removal in removals.removals if removal not in expired for row in removal.rows)
    of_trials = _rows_of(expired, RemovalKind.TRIALS) - retained
    requested = verified_requested_ids(store)
    of_sweeps = _rows_of(expired, RemovalKind.SWEEP) - retained - of_trials
    of_sweeps = frozenset(row for row in of_sweeps if row[0] not in requested)
    rows = of_trials | of_sweeps
    if rows:
        record = Removal(new_name(), RemovalKind.PURGING, "", time.time(), rows)
        record.write(store)
        is_requested = not verified_requested_ids(store).isdisjoint(trial_id for trial_id, _ in of_sweeps)
        if is_requested or any(store.size(removal_path(removal.removal_id)) is None for removal in expired):
            store.delete(removal_path(record.removal_id))
            return False
        replace(record, kind=RemovalKind.PURGED).write(store)  # with another size, which caches rely on
    for removal in expired:
        if not removal.rows & retained:
            store.delete(removal_path(removal.removal_id))
            store.delete(removed_path(removal.removal_id))
    return bool(rows)


def _rows_of(removals: Iterable[Removal], kind: RemovalKind) -> frozenset[Row]:
    return frozenset(row for removal in removals if removal.kind is kind for row in removal.rows)


def delete_purge_records(store: Store, snapshot: Snapshot) -> None:
    """Delete the final records whose rows are in no file any more, and records of killed compactions."""
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    stored = {key for source in sources for key in row_keys(source.all_trials)}
    for purge in snapshot.removals.purges:
        path, is_final = removal_path(purge.removal_id), purge.kind is RemovalKind.PURGED
        is_needed = is_final and purge.rows & stored
        if not is_needed and age_s(store, path, purge.removed_at) >= (EMPTY_S if is_final else UNDECIDED_S):
            store.delete(path)
