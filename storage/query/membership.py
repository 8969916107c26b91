"""Membership of committed trials: a trial belongs to every sweep whose newest launch requests it, whichever sweep ran it.

A trial that only an earlier launch of a sweep requested belongs to `<sweep>@<number of that launch>`: the sweep's file
has changed since, and results of the earlier content are not mixed with current results. If no recorded launch requests a
trial (a launch of the same file with a new version or default of its task replaces the list), it belongs to `<sweep>@0`. A
sweep without an intact list of trials, or known only by its results, has the trials that were committed for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from depthrate.grouping import grouped
from depthrate.storage.attempts.searches import SearchRecords
from depthrate.storage.catalog.specs import LaunchedSpec, read_specs
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store


@dataclass(frozen=True)
class Membership:
    """Sweep -> its committed trials."""

    of_sweep: Mapping[str, frozenset[str]]

    def note(self, sweep: str) -> str | None:
        """Return a note on a sweep's trials that its newest launch does not request, with a query, or None without any."""
        earlier = {name: len(ids) for name, ids in self.of_sweep.items() if name.startswith(f"{sweep}@")}
        if not earlier:
            return None
        named = ", ".join(f"{count} of {name}" for name, count in sorted(earlier.items()))
        query = f'depthrate query --sweep {min(earlier)} "select * from results"'
        return f"sweep {sweep} leaves out trials that its newest launch does not request ({named}). Show them: {query}"


def read_membership(store: Store, snapshot: Snapshot) -> Membership:
    """Read the sweeps' specs and assign each committed trial to at least one sweep."""
    ran_for: dict[str, set[str]] = {}
    for source in snapshot.sources:
        ran_for.setdefault(sweep_of_path(source.path), set()).update(source.trial_ids())
    committed = {trial_id for ids in ran_for.values() for trial_id in ids}
    launches = grouped(read_specs(store), lambda spec: spec.sweep)
    members: dict[str, set[str]] = {}
    for sweep, specs in launches.items():
        specs.sort(key=lambda spec: (spec.number, spec.launched_at), reverse=True)
        listed = specs[0].trial_ids(store)
        if listed is None:
            members[sweep] = set(ran_for.get(sweep, ()))
            continue
        if "search" in specs[0].spec:  # it requests more trials while it runs
            listed = [*listed, *_proposed(store, sweep, set(listed))]
        members[sweep] = committed.intersection(listed)
    _add_earlier(store, members, launches, committed)
    remaining = committed.difference(*members.values())
    for sweep, ids in ran_for.items():
        if rest := ids & remaining:
            members.setdefault(f"{sweep}@0" if sweep in launches else sweep, set()).update(rest)
    return Membership({sweep: frozenset(ids) for sweep, ids in members.items() if ids})


def _proposed(store: Store, sweep: str, listed: set[str]) -> set[str]:
    """Return the proposed trials of a launch's studies, whose first proposals are in its list."""
    records = SearchRecords(store, sweep)
    records.refresh()
    return {trial_id for ids in records.trials_by_study().values() if not listed.isdisjoint(ids) for trial_id in ids}


def _add_earlier(
    store: Store, members: dict[str, set[str]], launches: Mapping[str, list[LaunchedSpec]], committed: set[str]
) -> None:
    """Add trials that only earlier launches requested, under their numbers. Lists are read only while trials remain."""
    for sweep, specs in launches.items():
        remaining = committed.difference(*members.values())
        for spec in specs[1:]:
            if not remaining:
                return
            if requested := remaining.intersection(spec.trial_ids(store) or ()):
                members[f"{sweep}@{spec.number}"] = requested
                remaining -= requested
