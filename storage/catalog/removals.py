"""Rows that users removed: hidden at once, restorable until a compaction whose grace is over takes them away.

A removal names commits (trial, attempt), so what is committed later is never hidden by it. The rows of `trials rm` are
hidden for everybody; those of `sweeps rm` only while no sweep asks for their trials, which is looked up anew each time:
a sweep that is launched at the same moment keeps what it counted on. Before a compaction leaves rows out they are sealed
(`storage.maintenance.purge`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import (
    identity,
    is_final_purge_record,
    name_of_path,
    new_name,
    purge_record_path,
    removal_path,
    removed_path,
)
from depthrate.storage.files.store import Store

Row = tuple[str, str]
"""A committed trial: (trial, attempt)."""


class RemovalKind(StrEnum):
    """What a user removed."""

    TRIALS = "trials"
    """Results: their trials are pending for every sweep that asks for them."""
    SWEEP = "sweep"
    """A sweep, with those of its trials that no other sweep asks for."""


@dataclass(frozen=True)
class Removal:
    """What was removed at one time."""

    removal_id: str
    kind: RemovalKind
    sweep: str
    """The sweep that was removed; empty for trials."""
    removed_at: float
    rows: frozenset[Row]

    def write(self, store: Store) -> None:
        """Make the removal count."""
        fields = {"kind": self.kind.value, "sweep": self.sweep, "removed_at": self.removed_at}
        store.write(removal_path(self.removal_id), with_digest(fields | {"rows": _by_attempt(self.rows)}), durable=True)

    @staticmethod
    def from_bytes(path: str, content: bytes) -> Removal:
        """Return the removal that a file holds.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it holds none.
        """
        fields = read_with_digest(content)
        kind, sweep = RemovalKind(fields["kind"]), str(fields["sweep"])
        return Removal(identity(name_of_path(path)), kind, sweep, float(fields["removed_at"]), _rows(fields["rows"]))


@dataclass(frozen=True)
class PurgeRecord:
    """Rows that count for nobody, whoever asks for their trials."""

    seal_id: str
    is_final: bool
    """Whether who may ask for them was looked up after it was written: only then they may be left out."""
    sealed_at: float
    removals: tuple[str, ...]
    """Identities of the removals that it carries out."""
    unconditional: frozenset[Row]
    """Rows that were removed whoever asks for them."""
    unasked: frozenset[Row]
    """Rows that were removed because nobody asks for them."""

    @property
    def rows(self) -> frozenset[Row]:
        """All of them."""
        return self.unconditional | self.unasked

    @property
    def path(self) -> str:
        """Where it stands in the store."""
        return purge_record_path(self.seal_id, is_final=self.is_final)

    def write(self, store: Store) -> None:
        """Make the seal count."""
        fields = {"sealed_at": self.sealed_at, "removals": list(self.removals)}
        fields |= {"unconditional": _by_attempt(self.unconditional), "unasked": _by_attempt(self.unasked)}
        store.write(self.path, with_digest(fields), durable=True)

    @staticmethod
    def from_bytes(path: str, content: bytes) -> PurgeRecord:
        """Return the seal that a file holds.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it holds none.
        """
        fields = read_with_digest(content)
        return PurgeRecord(
            identity(name_of_path(path)),
            is_final_purge_record(path),
            float(fields["sealed_at"]),
            tuple(map(identity, fields["removals"])),
            _rows(fields["unconditional"]),
            _rows(fields["unasked"]),
        )


@dataclass(frozen=True)
class Removals:
    """All removals of a store."""

    removals: tuple[Removal, ...] = ()
    seals: tuple[PurgeRecord, ...] = ()
    hidden: frozenset[Row] = frozenset()
    """Rows that do not count."""
    gone: frozenset[Row] = frozenset()
    """Those of them that are sealed for good: a compaction leaves them out."""

    @staticmethod
    def from_entries(found: Iterable[Removal | PurgeRecord], owned: frozenset[str]) -> Removals:
        """Say what is hidden while sweeps ask for the trials `owned`."""
        found = sorted(found, key=str)
        removals = tuple(each for each in found if isinstance(each, Removal))
        seals = tuple(each for each in found if isinstance(each, PurgeRecord))
        gone = frozenset(row for seal in seals if seal.is_final for row in seal.rows)
        hidden = {row for seal in seals for row in seal.rows}
        hidden |= {row for each in removals if each.kind is RemovalKind.TRIALS for row in each.rows}
        of_sweeps = (row for each in removals if each.kind is RemovalKind.SWEEP for row in each.rows)
        hidden.update(row for row in of_sweeps if row[0] not in owned)
        return Removals(removals, seals, frozenset(hidden), gone)

    def trial_ids(self) -> set[str]:
        """Return the trials of which rows are hidden."""
        return {trial_id for trial_id, _ in self.hidden}

    def visible_mask(self, trials: pa.Table) -> pa.Array | None:
        """Return which rows of the trials table may count; None where all may."""
        return _not_in(trials, self.hidden)

    def permanent_only(self) -> Removals:
        """Return what holds for who writes rows anew: what may be restored stays."""
        return Removals(hidden=self.gone, gone=self.gone)


def _not_in(trials: pa.Table, rows: frozenset[Row]) -> pa.Array | None:
    if not rows:
        return None
    pairs = zip(trials["trial_id"].to_pylist(), trials["attempt_id"].to_pylist(), strict=True)
    return pa.array([pair not in rows for pair in pairs], pa.bool_())


def remove(store: Store, kind: RemovalKind, sweep: str, rows: Iterable[Row]) -> Removal:
    """Hide rows from now on.

    Raises:
        OSError: the store refused the write; nothing is hidden.
    """
    removal = Removal(new_name(), kind, sweep, time.time(), frozenset(rows))
    removal.write(store)
    return removal


def archive_sweep(store: Store, removal: Removal, paths: Iterable[str]) -> None:
    """Move what a removed sweep had beside its results to where a restoration finds it."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # what a pack had logged goes with its commit
            store.move(path, removed_path(removal.removal_id, path))


def restore(store: Store, removals: Iterable[Removal]) -> None:
    """Make removals undone: what was put away comes back, where nothing newer has taken its place.

    Who calls it looks at the store again: a compaction may have sealed rows at the same moment.
    """
    known = list(removals)
    for removal in known:
        folder = removed_path(removal.removal_id)
        for path in sorted(store.list(folder), key=lambda each: each.endswith(".json")):  # a spec after its trials
            back = path.removeprefix(f"{folder}/")
            if store.size(back) is None:
                store.move(path, back)
            else:
                store.delete(path)  # launched or fitted anew since
    for removal in known:
        store.delete(removal_path(removal.removal_id), durable=True)


def _by_attempt(rows: Iterable[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trial_id, attempt_id in sorted(rows):
        found.setdefault(attempt_id, []).append(trial_id)
    return found


def _rows(by_attempt: Mapping[str, list[str]]) -> frozenset[Row]:
    return frozenset((str(t), identity(attempt)) for attempt, trials in by_attempt.items() for t in trials)
