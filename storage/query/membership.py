"""Which sweeps a committed trial belongs to: every sweep whose newest launch asks for it, whoever ran it first.

A trial that only an earlier launch of a sweep asked for belongs to `<sweep>@<number of that launch>`: the sweep's file was
changed since, and what it was before is not mixed with what it is. A sweep of which no list of trials is kept (it was
launched by an early version, or nothing is known of it but its results) has those that were committed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from depthrate.storage.catalog.specs import LaunchedSpec, read_specs
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store


@dataclass(frozen=True)
class Membership:
    """Sweep -> its committed trials."""

    of_sweep: Mapping[str, frozenset[str]]

    def table(self, trials: pa.Table) -> pa.Table:
        """Return the trials once for each sweep they belong to, which then stands in the column `sweep`."""
        rows = {trial_id: index for index, trial_id in enumerate(trials["trial_id"].to_pylist())}
        pairs = sorted((rows[t], sweep) for sweep, ids in self.of_sweep.items() for t in ids if t in rows)
        taken = trials.take(pa.array([row for row, _ in pairs], pa.int64()))
        return with_sweep(taken, pa.array([sweep for _, sweep in pairs], pa.string()))


def with_sweep(trials: pa.Table, sweeps: pa.Array) -> pa.Table:
    """Return the trials with other names of sweeps."""
    return trials.set_column(trials.column_names.index("sweep"), "sweep", sweeps)


def read_membership(store: Store, snapshot: Snapshot) -> Membership:
    """Return which committed trials belong to which sweep; each belongs to one at least."""
    ran_for: dict[str, set[str]] = {}
    for source in snapshot.sources:
        ran_for.setdefault(sweep_of_path(source.path), set()).update(source.trial_ids())
    committed = {trial_id for ids in ran_for.values() for trial_id in ids}
    launches: dict[str, list[LaunchedSpec]] = {}
    for spec in read_specs(store):
        launches.setdefault(spec.sweep, []).append(spec)
    members: dict[str, set[str]] = {}
    for sweep, specs in launches.items():
        specs.sort(key=lambda spec: (spec.number, spec.launched_at), reverse=True)
        listed = specs[0].trial_ids(store)
        found = set() if listed is None else committed.intersection(listed)
        if listed is None or "search" in specs[0].spec:  # a search asks for more as it goes
            found |= ran_for.get(sweep, set())
        members[sweep] = found
    _add_earlier(store, members, launches, committed)
    left = committed.difference(*members.values())
    for sweep, ids in ran_for.items():
        if rest := ids & left:
            members.setdefault(sweep, set()).update(rest)
    return Membership({sweep: frozenset(ids) for sweep, ids in members.items() if ids})


def _add_earlier(
    store: Store, members: dict[str, set[str]], launches: Mapping[str, list[LaunchedSpec]], committed: set[str]
) -> None:
    """Add what only earlier launches asked for, under their numbers; their lists are read only where trials are left."""
    for sweep, specs in launches.items():
        left = committed.difference(*members.values())
        for spec in specs[1:]:
            if not left:
                return
            if found := left.intersection(spec.trial_ids(store) or ()):
                members[f"{sweep}@{spec.number}"] = found
                left -= found
