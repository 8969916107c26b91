"""Remove a sweep: what nobody else asks for goes with it, what another sweep asks for stays that sweep's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.catalog.removals import Removal, RemovalKind, Row, archive_sweep, remove
from depthrate.storage.catalog.requested_trials import verified_requested_ids
from depthrate.storage.catalog.specs import read_specs
from depthrate.storage.commits.snapshot import Snapshot, require_intact
from depthrate.storage.commits.source import VisibleCommit
from depthrate.storage.files.paths import (
    fits_path,
    launches_folder,
    live_folder,
    searches_folder,
    sweep_folder,
    sweep_of_path,
)
from depthrate.storage.files.store import Store


@dataclass(frozen=True)
class RemovalPlan:
    """What the removal of a sweep would do."""

    sweep: str
    rows: frozenset[Row]
    """Committed trials, of every attempt, that nobody else asks for."""
    kept: frozenset[str]
    """Its committed trials that another sweep asks for."""
    paths: tuple[str, ...]
    """Its specs, searches and fits: what is put away, the specs' lists of trials before the specs."""

    def trial_ids(self) -> set[str]:
        """Return the trials that go."""
        return {trial_id for trial_id, _ in self.rows}


def plan_removal(store: Store, snapshot: Snapshot, sweep: str) -> RemovalPlan:
    """Return what the removal of a sweep would do.

    Trials of another sweep of which no list is kept are taken to be asked for by it.

    Raises:
        CorruptFileError: what another sweep asks for cannot be told, or a manifest or a removal cannot be read.
    """
    require_intact(snapshot)
    specs = list(read_specs(store))
    unlisted = {spec.sweep for spec in specs if spec.trials_sha256 is None or "search" in spec.spec} - {sweep}
    wanted = {t for spec in specs if spec.sweep == sweep for t in spec.trial_ids(store) or ()}
    held = [(source, row) for source in (*snapshot.sources, *snapshot.superseded_commits) for row in _rows(source)]
    wanted |= {row[0] for source, row in held if sweep_of_path(source.path) == sweep}
    kept = wanted & verified_requested_ids(store, without=sweep, all_listed=False)
    kept |= {row[0] for source, row in held if sweep_of_path(source.path) in unlisted} & wanted
    rows = frozenset(row for _, row in held if row[0] in wanted - kept) - snapshot.removals.gone
    committed = snapshot.trial_ids()
    own = [*store.list(searches_folder(sweep)), *store.list(fits_path(sweep).rpartition("/")[0])]
    own += store.list(live_folder(sweep))  # of attempts that were killed
    own += store.list(launches_folder(sweep))
    listed = [path for path in store.list(sweep_folder(sweep)) if path.endswith((".json", ".trials"))]
    ordered = (*own, *sorted(listed, key=lambda path: path.endswith(".json")))
    return RemovalPlan(sweep, rows, frozenset(kept & committed), ordered)


def remove_sweep(store: Store, going: RemovalPlan) -> Removal:
    """Remove a sweep; killed on the way it leaves a sweep that can be removed or restored.

    Raises:
        ClockError: the clock of this machine is wrong, or the store's.
        OSError: the store refused.
    """
    require_clock(store)
    removal = remove(store, RemovalKind.SWEEP, going.sweep, going.rows)
    archive_sweep(store, removal, going.paths)
    return removal


def rows_of_trials(snapshot: Snapshot, trial_ids: Iterable[str]) -> frozenset[Row]:
    """Return every commit of some trials that is not gone.

    Raises:
        CorruptFileError: a manifest or a removal cannot be read.
    """
    require_intact(snapshot)
    wanted = set(trial_ids)
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    return frozenset(row for source in sources for row in _rows(source) if row[0] in wanted) - snapshot.removals.gone


def _rows(source: VisibleCommit) -> Iterable[Row]:
    return zip(source.all_trials["trial_id"].to_pylist(), source.all_trials["attempt_id"].to_pylist(), strict=True)
