"""Rows that users removed: hidden at once, restorable until a compaction whose grace is over takes them away.

A removal names commits (trial, attempt), so what is committed later is never hidden by it. The rows of `trials rm` are
hidden for everybody; those of `sweeps rm` only while no sweep asks for their trials, which is looked up anew each time:
a sweep that is launched at the same moment keeps what it counted on. Before a compaction leaves rows out it seals them:
from then on they count for nobody, so that nobody relies on what is about to go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from depthrate.storage.clocks import age_s
from depthrate.storage.json_file import read_sealed, sealed
from depthrate.storage.layout import identity, name_of_path, removal_path, removed_path, seal_path
from depthrate.storage.names import new_name
from depthrate.storage.store import Store, StoreError

if TYPE_CHECKING:
    from depthrate.storage.snapshot import Snapshot

Row = tuple[str, str]
"""A committed trial: (trial, attempt)."""
OwnedNow = Callable[[], frozenset[str]]
"""Returns the trials that sweeps ask for at this moment."""


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
        store.write(removal_path(self.removal_id), sealed(fields | {"rows": _by_attempt(self.rows)}), durable=True)

    @staticmethod
    def of(path: str, content: bytes) -> Removal:
        """Return the removal that a file holds.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it holds none.
        """
        fields = read_sealed(content)
        kind, sweep = RemovalKind(fields["kind"]), str(fields["sweep"])
        return Removal(identity(name_of_path(path)), kind, sweep, float(fields["removed_at"]), _rows(fields["rows"]))


@dataclass(frozen=True)
class Seal:
    """Rows that are gone for good."""

    path: str
    sealed_at: float
    rows: frozenset[Row]

    @staticmethod
    def of(path: str, content: bytes) -> Seal:
        """Return the seal that a file holds.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it holds none.
        """
        fields = read_sealed(content)
        return Seal(path, float(fields["sealed_at"]), _rows(fields["rows"]))


@dataclass(frozen=True)
class Removals:
    """All removals of a store."""

    removals: tuple[Removal, ...] = ()
    seals: tuple[Seal, ...] = ()
    hidden: frozenset[Row] = frozenset()
    """Rows that do not count."""
    gone: frozenset[Row] = frozenset()
    """Those of them that are sealed: a compaction leaves them out."""

    @staticmethod
    def of(found: Iterable[Removal | Seal], owned: frozenset[str]) -> Removals:
        """Say what is hidden while sweeps ask for the trials `owned`."""
        found = sorted(found, key=str)
        removals = tuple(each for each in found if isinstance(each, Removal))
        seals = tuple(each for each in found if isinstance(each, Seal))
        gone = frozenset(row for seal in seals for row in seal.rows)
        hidden = {row for each in removals if each.kind is RemovalKind.TRIALS for row in each.rows}
        of_sweeps = (row for each in removals if each.kind is RemovalKind.SWEEP for row in each.rows)
        hidden.update(row for row in of_sweeps if row[0] not in owned)
        return Removals(removals, seals, frozenset(hidden) | gone, gone)

    def trial_ids(self) -> set[str]:
        """Return the trials of which rows are hidden."""
        return {trial_id for trial_id, _ in self.hidden}

    def counts(self, trials: pa.Table) -> pa.Array | None:
        """Return which rows of the trials table may count; None where all may."""
        return _not_in(trials, self.hidden)

    def only_gone(self) -> Removals:
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


def put_away(store: Store, removal: Removal, paths: Iterable[str]) -> None:
    """Move what a removed sweep had beside its results to where a restoration finds it."""
    for path in paths:
        store.move(path, removed_path(removal.removal_id, path))


def restore(store: Store, removals: Iterable[Removal]) -> int:
    """Make removals undone, what was put away first, and return how many files came back.

    Raises:
        StoreError: what was put away would come to lie on something else.
    """
    count, known = 0, list(removals)
    for removal in known:
        folder = removed_path(removal.removal_id)
        for path in sorted(store.list(folder), key=lambda each: each.endswith(".json")):  # a spec after its trials
            back = path.removeprefix(f"{folder}/")
            if store.size(back) is None:
                store.move(path, back)
                count += 1
            elif store.read(back) == store.read(path) or back.startswith(("sweeps/", "fits/")):
                store.delete(path)  # launched or fitted anew since: that is newer
            else:
                raise StoreError(f"{back} is there already and another; {removal.sweep} is not restored")
    for removal in known:
        store.delete(removal_path(removal.removal_id))
    return count


def seal_removals(store: Store, removals: Removals, grace_s: float, owned_now: OwnedNow) -> bool:
    """Seal what was removed longer than `grace_s` ago and nobody asks for; return whether something was.

    Who asks is looked up once more after the seal is written: what a sweep asked for meanwhile is let go.
    """
    ripe = [
        each for each in removals.removals if age_s(store, removal_path(each.removal_id), each.removed_at) >= grace_s
    ]
    if not ripe:
        return False
    young = {row for each in removals.removals if each not in ripe for row in each.rows}
    wanted = {row for each in ripe if each.kind is RemovalKind.TRIALS for row in each.rows}
    unwanted = {row for each in ripe if each.kind is RemovalKind.SWEEP for row in each.rows} - wanted
    owned = owned_now()
    rows = (wanted | {row for row in unwanted if row[0] not in owned}) - young
    path = seal_path(new_name())
    if rows:
        store.write(path, sealed({"sealed_at": time.time(), "rows": _by_attempt(rows)}), durable=True)
        owned = owned_now()
        if any(row[0] in owned for row in rows - wanted) or _were_restored(store, ripe):
            store.delete(path)
            return False
    for removal in ripe:
        if not removal.rows & young:
            store.delete(removed_path(removal.removal_id))
            store.delete(removal_path(removal.removal_id))
    return bool(rows)


def _were_restored(store: Store, removals: Iterable[Removal]) -> bool:
    return any(store.size(removal_path(each.removal_id)) is None for each in removals)


def _by_attempt(rows: Iterable[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trial_id, attempt_id in sorted(rows):
        found.setdefault(attempt_id, []).append(trial_id)
    return found


def _rows(by_attempt: Mapping[str, list[str]]) -> frozenset[Row]:
    return frozenset((str(t), identity(attempt)) for attempt, trials in by_attempt.items() for t in trials)


EMPTY_S = 86_400.0
"""A seal stays at least so long: a compaction that began before it may still write rows of it."""


def delete_empty_seals(store: Store, snapshot: Snapshot) -> None:
    """Delete the seals whose rows stand in no file any more."""
    held = {
        pair
        for source in (*snapshot.sources, *snapshot.beaten)
        for pair in zip(source.held["trial_id"].to_pylist(), source.held["attempt_id"].to_pylist(), strict=True)
    }
    for seal in snapshot.removals.seals:
        if not seal.rows & held and age_s(store, seal.path, seal.sealed_at) >= EMPTY_S:
            store.delete(seal.path)
