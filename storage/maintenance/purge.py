"""Purges: the removed rows that a compaction may leave out, because no sweep relies on them.

A launch writes the trials it requests and then checks which of them are committed. A purge record (seal) first hides its rows
from all sweeps, and then the requested trials are read. If a launch and a seal are written at the same moment, at least one
therefore sees the other: the launch runs the trial itself, or the seal is withdrawn. Only rows that passed this check are left
out. A compaction killed in between leaves an undecided seal, and the next compaction decides it. If two compactions decide the
same seal, the result is the same.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

from depthrate.storage.attempts.clocks import age_s
from depthrate.storage.catalog.removals import PurgeRecord, Removal, RemovalKind, Removals, Row
from depthrate.storage.catalog.requested_trials import verified_requested_ids
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.paths import new_name, removal_path, removed_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import row_keys

EMPTY_S = 86_400.0
"""Minimum age in seconds at which a seal is deleted: a compaction that started before the seal may still write its rows."""


def seal_removals(store: Store, removals: Removals, grace_s: float) -> bool:
    """Seal rows that were removed more than `grace_s` seconds ago and that no sweep requests. Return whether any were sealed.

    Raises:
        CorruptFileError: The requested trials are unknown, so nothing is purged.
        OSError: The store refused a write. Nothing is lost, and the next compaction continues.
    """
    undecided = [seal for seal in removals.seals if not seal.is_final]
    expired = [
        removal
        for removal in removals.removals
        if age_s(store, removal_path(removal.removal_id), removal.removed_at) >= grace_s
    ]
    if not undecided and not expired:
        return False
    retained = frozenset(row for removal in removals.removals if removal not in expired for row in removal.rows)
    unconditional = _rows_of(expired, RemovalKind.TRIALS) - retained
    requested = verified_requested_ids(store)
    of_sweeps = _rows_of(expired, RemovalKind.SWEEP) - retained - unconditional
    unasked = frozenset(row for row in of_sweeps if row[0] not in requested)
    has_decided = any([_decide(store, seal) for seal in undecided])
    if unconditional or unasked:
        removal_ids = tuple(removal.removal_id for removal in expired)
        seal = PurgeRecord(new_name(), False, time.time(), removal_ids, unconditional, unasked)
        seal.write(store)
        if not _decide(store, seal):
            return has_decided
    for removal in expired:
        if not removal.rows & retained:
            store.delete(removal_path(removal.removal_id))
            store.delete(removed_path(removal.removal_id))
    return has_decided or bool(unconditional or unasked)


def _decide(store: Store, seal: PurgeRecord) -> bool:
    """Make a seal final, or withdraw it if a sweep requests its rows or they were restored."""
    is_final = not {trial_id for trial_id, _ in seal.unasked} & verified_requested_ids(store)
    is_final &= all(store.size(removal_path(removal)) is not None for removal in seal.removals)
    if is_final:
        replace(seal, is_final=True).write(store)
    store.delete(seal.path)
    return is_final


def _rows_of(removals: Iterable[Removal], kind: RemovalKind) -> frozenset[Row]:
    return frozenset(row for removal in removals if removal.kind is kind for row in removal.rows)


def delete_empty_seals(store: Store, snapshot: Snapshot) -> None:
    """Delete the seals whose rows are no longer in any file."""
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    stored = {key for source in sources for key in row_keys(source.all_trials)}
    for seal in snapshot.removals.seals:
        if seal.is_final and not seal.rows & stored and age_s(store, seal.path, seal.sealed_at) >= EMPTY_S:
            store.delete(seal.path)
