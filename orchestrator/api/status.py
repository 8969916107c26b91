"""Poll a store for the state of sweeps: trials, running attempts, scheduler jobs, cost, events."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import Answers, JobCounts
from depthrate.orchestrator.executors.registry import poll_schedulers, unreported_ends
from depthrate.orchestrator.launch.events import read_last_launch
from depthrate.orchestrator.monitor.cost import SweepCost, compute_cost
from depthrate.orchestrator.monitor.running_trials import RunningTrial, running_trials
from depthrate.orchestrator.monitor.status import SweepStatus, sweep_status
from depthrate.storage.attempts.claims import read_claims
from depthrate.storage.attempts.live_curves import LivePack, LiveReader, newest_live_rows
from depthrate.storage.attempts.records import RecordReader, read_records
from depthrate.storage.catalog.specs import sweep_of_launch
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import STATE_COLUMNS, TRIALS

POLL_INTERVAL_S = 2.0
IDLE_READ_INTERVAL_S = 30.0
"""Seconds between two reads of the costs and events of a sweep without running or changed trials."""
SPARING_COST_INTERVAL_S = 10.0
"""Seconds between two reads of costs and events in sparing mode."""
SPARING_LIVE_INTERVAL_S = 4.0
"""Seconds between two reads of live curves in sparing mode. Workers write them every five seconds."""
MAX_EVENTS_SHOWN = 6
"""Maximum number of events of the last launch shown by `--watch`."""
MIN_SCHEDULER_POLL_INTERVAL_S = 15.0
MAX_SCHEDULER_POLL_INTERVAL_S = 60.0
POLL_BACKOFF_FACTOR = 1.5
"""Factor by which the interval grows while a scheduler's answer stays the same."""


@dataclass(frozen=True)
class StatusSnapshot:
    """State of some sweeps at one point in time."""

    states: list[SweepStatus]
    answers: dict[str, Answers]
    """Sweep -> answers of the schedulers."""
    costs: dict[str, SweepCost]
    """Sweep -> its cost, if requested."""
    running: list[RunningTrial]
    launches: dict[str, dict[str, Any]]
    """Sweep -> record of its last launch, with events."""
    snapshot: Snapshot
    packs: list[LivePack]
    """Live curves of the running trials."""
    unattended: dict[str, str]
    """Sweep with pending trials, but without a live launch, job or attempt -> a sentence with the command that runs it."""

    @property
    def num_open(self) -> int:
        """Number of pending or running trials."""
        return sum(state.counts()["pending"] + state.counts()["running"] for state in self.states)


class StatusPoller:
    """Polls the state of sweeps, and caches everything that need not be read again."""

    def __init__(
        self,
        store: Store,
        planned: Mapping[str, Sequence[str]],
        *,
        with_costs: bool,
        with_events: bool = False,
        for_queries: bool = False,
        is_sparing: bool = False,
    ):
        """Set the sweeps to poll.

        Args:
            store: Store of the sweeps.
            planned: Sweep -> its trial_ids.
            with_costs: Whether to compute costs.
            with_events: Whether to read the events of the last launch.
            for_queries: Whether the snapshots are queried too: whether to read all columns and keep the small files.
            is_sparing: Sparing mode: whether to read everything except trial states less often.
        """
        self.planned = planned
        """Sweep -> its trial_ids."""
        self._store, self._with_costs, self._with_events = store, with_costs, with_events
        self._costs_every_s = SPARING_COST_INTERVAL_S if is_sparing else 0.0
        self._live_every_s = SPARING_LIVE_INTERVAL_S if is_sparing else 0.0
        self._cache = SnapshotCache(TRIALS.names if for_queries else STATE_COLUMNS, keeps_files=for_queries)
        self._reader = RecordReader(store)
        self._schedulers, self._live = SchedulerPoller(store), LiveReader(store)
        self._logged: list[LivePack] = []
        self._live_at = float("-inf")
        self._costs: dict[str, SweepCost] = {}
        self._launches: dict[str, dict[str, Any] | None] = {}
        self._read: dict[str, tuple[dict[str, int], float]] = {}
        """Sweep -> (trials per state, time) of the last read of costs and events."""

    def poll(self) -> StatusSnapshot:
        """Poll the store.

        Raises:
            OSError, StoreError: The store does not answer.
        """
        self._store.require_exists()
        with self._reader.one_listing():
            return self._poll()

    def _poll(self) -> StatusSnapshot:
        store, snapshot = self._store, take_snapshot(self._store, cache=self._cache)
        answers = {name: self._schedulers.poll(sweep_of_launch(name)) for name in self.planned}
        states = [
            sweep_status(name, trial_ids, snapshot, store, unreported_ends(answers[name]), self._reader)
            for name, trial_ids in self.planned.items()
        ]
        for state in filter(self._is_due, states):
            if self._with_costs:
                records = read_records(store, snapshot, sweep=state.name, reader=self._reader)
                rows = snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_pylist()
                self._costs[state.name] = compute_cost(records, rows, time.time())
            if self._with_events:
                self._launches[state.name] = read_last_launch(store, sweep_of_launch(state.name))
        if any(state.counts()["running"] for state in states):
            if time.monotonic() - self._live_at >= self._live_every_s:
                self._logged, self._live_at = self._live.refresh(), time.monotonic()
        else:
            self._logged, self._live_at = [], float("-inf")
        packs = newest_live_rows(self._logged, snapshot.commit_index.keys()) if self._logged else []
        costs = {name: self._costs[name] for name in self.planned if name in self._costs}
        launches = {name: launch for name in self.planned if (launch := self._launches.get(name)) is not None}
        idle = [state for state in states if _is_idle(state, answers[state.name])]
        now, claims = time.time(), read_claims(store) if idle else []
        working = [claim for _, claim in claims if claim.is_live(now)]
        unattended = {
            state.name: f"no launch or job works on {counted(state.counts()['pending'], 'pending trial')}. "
            f"Run: {next_call('run', state.name, store.url)}"
            for state in idle
            if not any(of.sweep == state.name or not state.states.keys().isdisjoint(of.trials) for of in working)
        }
        running = running_trials(states, packs)
        return StatusSnapshot(states, answers, costs, running, launches, snapshot, packs, unattended)

    def _is_due(self, state: SweepStatus) -> bool:
        """Return whether to read the costs and events of a sweep again. Idle sweeps are read less often."""
        now, counts = time.monotonic(), state.counts()
        previous, read_at = self._read.get(state.name, (None, float("-inf")))
        if now - read_at < self._costs_every_s:
            return False
        if previous == counts and not counts["running"] and now - read_at < IDLE_READ_INTERVAL_S:
            return False
        self._read[state.name] = counts, now
        return True


def _is_idle(state: SweepStatus, answers: Answers) -> bool:
    """Return whether a sweep has pending trials, no running trials, and no job as far as its schedulers are known."""
    counts, jobs = state.counts(), [answer.counts for answer in answers.values() if answer is not None]
    has_jobs = any(of_scheduler is None or of_scheduler.waiting + of_scheduler.running for of_scheduler in jobs)
    is_newest = state.name == sweep_of_launch(state.name)  # only the newest launch is run again by the sweep's name
    return is_newest and counts["pending"] > 0 and not counts["running"] and not has_jobs


class SchedulerPoller:
    """Cached scheduler answers about sweeps' jobs. A scheduler is polled less often while its answer stays the same."""

    def __init__(
        self,
        store: Store,
        poll_schedulers: Callable[[Store, str], Answers] = poll_schedulers,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store, self._poll_schedulers, self._clock = store, poll_schedulers, clock
        self._answers: dict[str, Answers] = {}
        self._next: dict[str, tuple[float, float]] = {}
        """Sweep -> (time of the next poll, interval before it)."""

    def poll(self, sweep: str) -> Answers:
        """Map each executor to its scheduler's last answer about a sweep's jobs."""
        due, interval_s = self._next.get(sweep, (float("-inf"), MIN_SCHEDULER_POLL_INTERVAL_S / POLL_BACKOFF_FACTOR))
        if self._clock() >= due:
            answer = self._poll_schedulers(self._store, sweep)
            is_same = sweep in self._answers and answer == self._answers[sweep]
            interval_s = (
                min(MAX_SCHEDULER_POLL_INTERVAL_S, POLL_BACKOFF_FACTOR * interval_s)
                if is_same
                else MIN_SCHEDULER_POLL_INTERVAL_S
            )
            self._answers[sweep], self._next[sweep] = answer, (self._clock() + interval_s, interval_s)
        return self._answers[sweep]


def job_text(counts: JobCounts, title: str) -> str:
    """Return a sentence about a sweep's jobs in a scheduler, with the reasons why they wait."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.items())
    waiting = counted(counts.waiting, f"{title} job") + " waiting"
    text = waiting + (f" ({reasons})" if reasons else "") + f", {counts.running} running"
    return ". ".join([text, *counts.advice])
