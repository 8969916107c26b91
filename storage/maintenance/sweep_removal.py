"""Remove a sweep and the trials that no other sweep requests.

Trials that another sweep requests are kept for that sweep.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.catalog.removals import Removal, RemovalKind, Row, remove
from depthrate.storage.catalog.requested_trials import verified_requested_ids
from depthrate.storage.catalog.specs import read_specs
from depthrate.storage.commits.snapshot import Snapshot, require_intact
from depthrate.storage.files.paths import (
    fits_path,
    launch_path,
    live_path,
    removed_path,
    searches_folder,
    spec_path,
    sweep_of_path,
)
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import row_keys


@dataclass(frozen=True)
class RemovalPlan:
    """Effects of removing a sweep."""

    sweep: str
    rows: frozenset[Row]
    """Committed trials, of every attempt, that no other sweep requests."""
    kept: frozenset[str]
    """Its committed trials that another sweep requests."""
    paths: tuple[str, ...]
    """Files to archive: its specs, oldest launch first, since the last one hides the sweep at once, then all others."""

    def trial_ids(self) -> set[str]:
        """Return the trials to be removed."""
        return {trial_id for trial_id, _ in self.rows}


def plan_removal(store: Store, snapshot: Snapshot, sweep: str) -> RemovalPlan:
    """Plan the removal of a sweep.

    A sweep without a list of trials is assumed to request the trials that were committed for it.

    Raises:
        CorruptFileError: The requests of another sweep are unknown, or a manifest or a removal cannot be read.
    """
    require_intact(snapshot)
    specs = list(read_specs(store))
    unlisted = {spec.sweep for spec in specs if "search" in spec.spec} - {sweep}
    wanted = {t for spec in specs if spec.sweep == sweep for t in spec.trial_ids(store) or ()}
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    stored = [(source, row) for source in sources for row in row_keys(source.all_trials)]
    wanted |= {row[0] for source, row in stored if sweep_of_path(source.path) == sweep}
    kept = wanted & verified_requested_ids(store, without=sweep)
    kept |= {row[0] for source, row in stored if sweep_of_path(source.path) in unlisted} & wanted
    rows = frozenset(row for _, row in stored if row[0] in wanted - kept) - snapshot.removals.gone
    committed = snapshot.trial_ids()
    paths = [*store.list(searches_folder(sweep)), *store.list(fits_path(sweep).rpartition("/")[0])]
    paths += store.list(live_path.folder(sweep))  # of killed attempts
    paths += store.list(launch_path.folder(sweep))
    numbers = {spec_path(sweep, spec.spec_hash): spec.number for spec in specs if spec.sweep == sweep}
    listed = [path for path in store.list(spec_path.folder(sweep)) if path.endswith((".json", ".trials"))]
    listed.sort(key=lambda path: (path.endswith(".trials"), numbers.get(path, 0)))
    return RemovalPlan(sweep, rows, frozenset(kept & committed), (*listed, *paths))


def remove_sweep(store: Store, plan: RemovalPlan) -> Removal:
    """Remove a sweep. If the removal is interrupted, the sweep can be removed again or restored.

    Raises:
        ClockError: The local clock or the store's is wrong.
    """
    require_clock(store)
    removal = remove(store, RemovalKind.SWEEP, plan.sweep, plan.rows)
    for path in plan.paths:
        with contextlib.suppress(FileNotFoundError):  # live curves are deleted when their pack commits
            store.move(path, removed_path(removal.removal_id, path))
    return removal


def rows_of_trials(snapshot: Snapshot, trial_ids: Iterable[str]) -> frozenset[Row]:
    """Return every commit of some trials that is not permanently removed.

    Raises:
        CorruptFileError: A manifest or a removal cannot be read.
    """
    require_intact(snapshot)
    wanted = set(trial_ids)
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    rows = frozenset(row for source in sources for row in row_keys(source.all_trials) if row[0] in wanted)
    return rows - snapshot.removals.gone
