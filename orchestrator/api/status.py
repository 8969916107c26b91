"""Poll a store for the state of sweeps: trials, running attempts, scheduler jobs, cost, events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.attempts.liveness import stalled_s
from depthrate.orchestrator.attempts.record import describe_attempt
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import JobCounts, SchedulerAnswer
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.orchestrator.launch.events import read_last_launch
from depthrate.orchestrator.monitor.cost import SweepCost, compute_cost
from depthrate.orchestrator.monitor.running_trials import RunningTrial, running_trials
from depthrate.orchestrator.monitor.status import SweepStatus, sweep_status
from depthrate.storage.attempts.live_curves import LivePack, LiveReader, newest_live_rows
from depthrate.storage.attempts.records import Record, RecordReader, read_records_of
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import STATE_COLUMNS

WATCH_EVERY_S = 2.0
QUIET_S = 30.0
"""Seconds after which costs and events of a sweep in which nothing runs or changes are read again."""
SPARING_COSTS_S, SPARING_LIVE_S = 10.0, 4.0
"""Seconds between two readings of costs and events, and of what running trials log, which is written every five."""
SHOWN_EVENTS = 6
"""Of the last launch of a sweep, by `--watch`."""
ASK_EVERY_S, ASK_SELDOM_S, ASK_LESS = 15.0, 60.0, 1.5
"""Seconds between two questions to a scheduler, at first and at most, and by what they grow while its answer stays the same."""
Counts = dict[str, JobCounts | None]
"""Executor -> jobs of a sweep in its scheduler."""
_Seen = dict[str, SchedulerAnswer | None]
"""Executor -> the last answer of its scheduler."""


def _ask_schedulers(store: Store, sweep: str) -> _Seen:
    return {executor: scheduler.poll(store, sweep) for executor, scheduler in schedulers().items()}


@dataclass(frozen=True)
class StatusSnapshot:
    """What is known of some sweeps at one moment."""

    states: list[SweepStatus]
    jobs: list[Counts]
    """Of each state."""
    costs: dict[str, SweepCost]
    """Of those sweeps whose costs are asked for."""
    running: list[RunningTrial]
    launches: dict[str, dict[str, Any]]
    """What happened in the last launch of each sweep."""
    snapshot: Snapshot
    packs: list[LivePack]
    """All that trials that run have logged."""

    @property
    def num_open(self) -> int:
        """Trials that are pending or running."""
        return sum(state.counts()["pending"] + state.counts()["running"] for state in self.states)


class Watched:
    """The sweeps that are looked at, with what need not be read again."""

    def __init__(
        self,
        store: Store,
        planned: Mapping[str, Sequence[str]],
        *,
        with_costs: bool,
        with_events: bool = False,
        columns: Sequence[str] = STATE_COLUMNS,
        is_sparing: bool = False,
    ):
        """`columns` of the trials table are read; who `is_sparing` reads all but the states of trials less often."""
        self.planned = planned
        """Sweep -> its trials."""
        self._store, self._with_costs, self._with_events = store, with_costs, with_events
        self._costs_every_s = SPARING_COSTS_S if is_sparing else 0.0
        self._live_every_s = SPARING_LIVE_S if is_sparing else 0.0
        self._cache, self._reader = SnapshotCache(columns=columns), RecordReader(store)
        self._controllers, self._live = SchedulerPoller(store), LiveReader(store)
        self._logged: list[LivePack] = []
        self._live_at = float("-inf")
        self._costs: dict[str, SweepCost] = {}
        self._launches: dict[str, dict[str, Any] | None] = {}
        self._read: dict[str, tuple[dict[str, int], float]] = {}
        """Sweep -> how many trials were in which state when these two were read, and when that was."""

    def poll(self) -> StatusSnapshot:
        """Look at the store.

        Raises:
            OSError, StoreError: it does not answer.
        """
        self._store.require_exists()
        with self._reader.one_listing():
            return self._look()

    def _look(self) -> StatusSnapshot:
        store, snapshot = self._store, take_snapshot(self._store, cache=self._cache)
        seen = {name: self._controllers.poll(name) for name in self.planned}
        states = [
            sweep_status(name, trial_ids, snapshot, store, _deaths(seen[name]), self._reader)
            for name, trial_ids in self.planned.items()
        ]
        for state in filter(self._is_due, states):
            if self._with_costs:
                self._costs[state.name] = _reckon(store, snapshot, state.name, self._reader)
            if self._with_events:
                self._launches[state.name] = read_last_launch(store, state.name)
        if any(state.counts()["running"] for state in states):
            if time.monotonic() - self._live_at >= self._live_every_s:
                self._logged, self._live_at = self._live.refresh(), time.monotonic()
        else:
            self._logged, self._live_at = [], float("-inf")
        packs = newest_live_rows(self._logged, snapshot.commit_index.keys())
        costs = {name: self._costs[name] for name in self.planned if name in self._costs}
        told = {name: told for name in self.planned if (told := self._launches.get(name)) is not None}
        jobs = [_counts(seen[state.name]) for state in states]
        return StatusSnapshot(states, jobs, costs, running_trials(states, packs), told, snapshot, packs)

    def _is_due(self, state: SweepStatus) -> bool:
        """Whether to read again what a sweep has cost and what its launch tells: now and then where nothing happens."""
        now, counts = time.monotonic(), state.counts()
        before, read_at = self._read.get(state.name, (None, float("-inf")))
        if now - read_at < self._costs_every_s:
            return False
        if before == counts and not counts["running"] and now - read_at < QUIET_S:
            return False
        self._read[state.name] = counts, now
        return True


class SchedulerPoller:
    """What schedulers say of sweeps' jobs; between two answers the last one holds, ever longer while nothing changes."""

    def __init__(
        self,
        store: Store,
        ask: Callable[[Store, str], _Seen] = _ask_schedulers,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store, self._ask, self._clock = store, ask, clock
        self._answers: dict[str, _Seen] = {}
        self._next: dict[str, tuple[float, float]] = {}
        """Sweep -> when to ask again, and how long that was after the last time."""

    def poll(self, sweep: str) -> _Seen:
        """Return executor -> what its scheduler last said of a sweep's jobs."""
        due, pause_s = self._next.get(sweep, (float("-inf"), ASK_EVERY_S / ASK_LESS))
        if self._clock() >= due:
            answer = self._ask(self._store, sweep)
            is_same = sweep in self._answers and answer == self._answers[sweep]
            pause_s = min(ASK_SELDOM_S, ASK_LESS * pause_s) if is_same else ASK_EVERY_S
            self._answers[sweep], self._next[sweep] = answer, (self._clock() + pause_s, pause_s)
        return self._answers[sweep]


def _counts(seen: _Seen) -> Counts:
    return {executor: None if each is None else each.counts for executor, each in seen.items()}


def _deaths(seen: _Seen) -> list[Record]:
    return [record for each in seen.values() if each is not None for record in each.unreported_ends]


def _reckon(store: Store, snapshot: Snapshot, sweep: str, reader: RecordReader) -> SweepCost:
    rows = snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_pylist()
    return compute_cost(read_records_of(store, snapshot, sweep, reader), rows, time.time())


def stalled_words(sweep: str, record: Record) -> str:
    """Say which attempt comes no further, and how to end it."""
    text = f"{sweep}: {describe_attempt(record)}: no progress for {stalled_s(record) / 60:.0f} min"
    text += f", at step {record['step']}/{record['num_steps'] or '?'}"
    return f"{text}; end it: depthrate cancel {sweep} --force, or launch with --stall-minutes"


def job_words(counts: JobCounts, title: str) -> str:
    """Say how many jobs a scheduler has of a sweep, and why they wait."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.items())
    wait = counted(counts.waiting, f"{title} job waits", f"{title} jobs wait")
    return wait + (f" ({reasons})" if reasons else "") + f", {counts.running} run"
