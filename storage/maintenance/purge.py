"""From removed to gone: what a compaction may leave out, such that nobody relies on it.

A launch writes which trials it asks for and then looks what is committed; a seal hides its rows from everybody and then it
is looked up who asks for their trials. So of a launch and a seal at the same moment one sees the other: the launch runs the
trial itself, or the seal is taken back. Only what passed that look is left out. A compaction that died in between leaves a
seal that the next one decides about; that two of them decide changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from depthrate.storage.attempts.clocks import age_s
from depthrate.storage.catalog.removals import PurgeRecord, Removal, RemovalKind, Removals, Row
from depthrate.storage.catalog.requested_trials import verified_requested_ids
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.paths import new_name, removal_path, removed_path
from depthrate.storage.files.store import Store

EMPTY_S = 86_400.0
"""A seal stays at least so long: a compaction that began before it may still write rows of it."""


def seal_removals(store: Store, removals: Removals, grace_s: float) -> bool:
    """Seal what was removed longer than `grace_s` ago and nobody asks for; return whether something was.

    Raises:
        CorruptFileError: who asks for what cannot be told, so nothing is purged.
        OSError: the store refused; nothing is lost, the next compaction goes on.
    """
    undecided = [seal for seal in removals.seals if not seal.is_final]
    ripe = [
        removal
        for removal in removals.removals
        if age_s(store, removal_path(removal.removal_id), removal.removed_at) >= grace_s
    ]
    if not undecided and not ripe:
        return False
    young = frozenset(row for each in removals.removals if each not in ripe for row in each.rows)
    unconditional = _rows_of(ripe, RemovalKind.TRIALS) - young
    owned = verified_requested_ids(store)
    unasked = frozenset(row for row in _rows_of(ripe, RemovalKind.SWEEP) - young - unconditional if row[0] not in owned)
    has_decided = any([_decide(store, seal) for seal in undecided])
    if unconditional or unasked:
        carried_out = tuple(each.removal_id for each in ripe)
        seal = PurgeRecord(new_name(), False, time.time(), carried_out, unconditional, unasked)
        seal.write(store)
        if not _decide(store, seal):
            return has_decided
    for removal in ripe:
        if not removal.rows & young:
            store.delete(removal_path(removal.removal_id))
            store.delete(removed_path(removal.removal_id))
    return has_decided or bool(unconditional or unasked)


def _decide(store: Store, seal: PurgeRecord) -> bool:
    """Make a seal final, or take it back where somebody asks for its rows or they were restored."""
    is_final = not {trial_id for trial_id, _ in seal.unasked} & verified_requested_ids(store)
    is_final &= all(store.size(removal_path(removal)) is not None for removal in seal.removals)
    if is_final:
        replace(seal, is_final=True).write(store)
    store.delete(seal.path)
    return is_final


def _rows_of(removals: Iterable[Removal], kind: RemovalKind) -> frozenset[Row]:
    return frozenset(row for each in removals if each.kind is kind for row in each.rows)


def delete_empty_seals(store: Store, snapshot: Snapshot) -> None:
    """Delete the seals whose rows stand in no file any more."""
    held = {
        pair
        for source in (*snapshot.sources, *snapshot.superseded_commits)
        for pair in zip(
            source.all_trials["trial_id"].to_pylist(), source.all_trials["attempt_id"].to_pylist(), strict=True
        )
    }
    for seal in snapshot.removals.seals:
        if seal.is_final and not seal.rows & held and age_s(store, seal.path, seal.sealed_at) >= EMPTY_S:
            store.delete(seal.path)
