"""Removed rows: hidden immediately, and restorable until `compact --purge` deletes them once their retention has passed.

A removal names commits (trial, attempt), so it never hides later commits. Rows removed by `trials rm` are hidden from
all sweeps. Rows removed by `sweeps rm` are hidden only while no sweep requests their trials, which is checked again at each
read: a sweep launched at the same moment does not lose the rows it relies on. Before a compaction leaves rows out, a purge
record names them (`storage.maintenance.purge`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import (
    identity,
    name_of_path,
    new_name,
    removal_path,
    removed_path,
)
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import row_keys

Row = tuple[str, str]
"""A committed trial: (trial, attempt)."""


class RemovalKind(StrEnum):
    """Target of a removal."""

    TRIALS = "trials"
    """Results. Their trials become pending for every sweep that requests them."""
    SWEEP = "sweep"
    """A sweep and its trials that no other sweep requests."""
    PURGING = "purging"
    """Removed rows that a compaction is about to purge, if it finds that no sweep relies on them."""
    PURGED = "purged"
    """Removed rows that compactions leave out: not visible to any sweep, even one that requests their trials."""


@dataclass(frozen=True)
class Removal:
    """Rows removed at one time."""

    removal_id: str
    kind: RemovalKind
    sweep: str
    """Name of the removed sweep, or an empty string."""
    removed_at: float
    rows: frozenset[Row]

    def write(self, store: Store) -> None:
        """Write the removal to the store. This hides its rows."""
        fields = {"kind": self.kind.value, "sweep": self.sweep, "removed_at": self.removed_at}
        store.write(removal_path(self.removal_id), with_digest(fields | {"rows": _by_attempt(self.rows)}), durable=True)

    @staticmethod
    def from_bytes(path: str, content: bytes) -> Removal:
        """Parse the removal in a file.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: The content is invalid.
        """
        fields = read_with_digest(content)
        kind, sweep = RemovalKind(fields["kind"]), str(fields["sweep"])
        return Removal(identity(name_of_path(path)), kind, sweep, float(fields["removed_at"]), _rows(fields["rows"]))


@dataclass(frozen=True)
class Removals:
    """All removals of a store, and its purges."""

    removals: tuple[Removal, ...] = ()
    purges: tuple[Removal, ...] = ()
    """Records of purges."""
    hidden: frozenset[Row] = frozenset()
    """Rows that are not visible."""
    gone: frozenset[Row] = frozenset()
    """Rows that are purged: a compaction leaves them out."""

    @staticmethod
    def from_entries(entries: Iterable[Removal], requested: frozenset[str]) -> Removals:
        """Combine the entries of a store. `requested` holds the trials that its sweeps request."""
        entries = sorted(entries, key=str)
        purges = tuple(entry for entry in entries if entry.kind in (RemovalKind.PURGING, RemovalKind.PURGED))
        removals = tuple(entry for entry in entries if entry not in purges)
        gone = frozenset(row for purge in purges if purge.kind is RemovalKind.PURGED for row in purge.rows)
        hidden = {
            row
            for entry in entries
            for row in entry.rows
            if entry.kind is not RemovalKind.SWEEP or row[0] not in requested
        }
        return Removals(removals, purges, frozenset(hidden), gone)

    def trial_ids(self) -> set[str]:
        """Return the trials with hidden rows."""
        return {trial_id for trial_id, _ in self.hidden}

    def visible_mask(self, trials: pa.Table) -> pa.Array | None:
        """Return the mask of visible rows of the trials table, or None if all are visible."""
        if not self.hidden:
            return None
        return pa.array([key not in self.hidden for key in row_keys(trials)], pa.bool_())


def remove(store: Store, kind: RemovalKind, sweep: str, rows: Iterable[Row]) -> Removal:
    """Hide rows from now on.

    Raises:
        OSError: The store refused the write. Nothing is hidden.
    """
    removal = Removal(new_name(), kind, sweep, time.time(), frozenset(rows))
    removal.write(store)
    return removal


def restore(store: Store, removals: Iterable[Removal]) -> None:
    """Undo removals: move archived files back, unless newer ones exist at their paths.

    The caller scans the store again: a compaction may have purged rows at the same moment.
    """
    removals = list(removals)
    for removal in removals:
        folder = removed_path(removal.removal_id)
        # a spec is moved after its trials
        for path in sorted(store.list(folder), key=lambda path: path.endswith(".json")):
            original = path.removeprefix(f"{folder}/")
            if store.size(original) is None:
                store.move(path, original)
            else:
                store.delete(path)  # launched or fitted again since
    for removal in removals:
        store.delete(removal_path(removal.removal_id), durable=True)


def _by_attempt(rows: Iterable[Row]) -> dict[str, list[str]]:
    by_attempt: dict[str, list[str]] = {}
    for trial_id, attempt_id in sorted(rows):
        by_attempt.setdefault(attempt_id, []).append(trial_id)
    return by_attempt


def _rows(by_attempt: Mapping[str, list[str]]) -> frozenset[Row]:
    return frozenset((str(t), identity(attempt)) for attempt, trials in by_attempt.items() for t in trials)
