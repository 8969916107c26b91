"""`depthrate status`: show how many trials are done, running, failed and pending; of one sweep also what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from depthrate.orchestrator.attempts.record import stalled_s, who
from depthrate.orchestrator.cli.find_sweep import planned_trials
from depthrate.orchestrator.cli.options import FILE, declared, json_option, store_option, wide_option
from depthrate.orchestrator.cli.polling import looks
from depthrate.orchestrator.console.output_file import check_output
from depthrate.orchestrator.console.tables import (
    counted,
    make_console,
    print_json,
    print_rows,
    print_warnings,
    printable,
)
from depthrate.orchestrator.executors.base import JobCounts, SeenJobs
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.orchestrator.launch.events import last_launch
from depthrate.orchestrator.monitor.cost import Reckoning, cost_lines, reckon
from depthrate.orchestrator.monitor.prometheus import check_library, write_textfile
from depthrate.orchestrator.monitor.running_trials import SHOWN_RUNNING, RunningTrial, running_table, running_trials
from depthrate.orchestrator.monitor.status import SweepStatus, TrialState, sweep_status
from depthrate.storage.attempts.live_curves import LivePack, LiveReader, newest_rows
from depthrate.storage.attempts.records import Record, RecordReader, read_records_of
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store, existing_store
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
_Counts = dict[str, JobCounts | None]
"""Executor -> jobs of a sweep that its scheduler has."""
_Seen = dict[str, SeenJobs | None]
"""Executor -> the last answer of its scheduler."""


def _ask_schedulers(store: Store, sweep: str) -> _Seen:
    return {executor: scheduler.look(store, sweep) for executor, scheduler in schedulers().items()}


@dataclass(frozen=True)
class Look:
    """What is known of some sweeps at one moment."""

    states: list[SweepStatus]
    jobs: list[_Counts]
    """Of each state."""
    costs: dict[str, Reckoning]
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
        self._controllers, self._live = Controllers(store), LiveReader(store)
        self._logged: list[LivePack] = []
        self._live_at = float("-inf")
        self._costs: dict[str, Reckoning] = {}
        self._launches: dict[str, dict[str, Any] | None] = {}
        self._read: dict[str, tuple[dict[str, int], float]] = {}
        """Sweep -> how many trials were in which state when these two were read, and when that was."""

    def look(self) -> Look:
        """Look at the store.

        Raises:
            OSError, StoreError: it does not answer.
        """
        self._store.require_there()
        with self._reader.one_listing():
            return self._look()

    def _look(self) -> Look:
        store, snapshot = self._store, take_snapshot(self._store, cache=self._cache)
        seen = {name: self._controllers.look(name) for name in self.planned}
        states = [
            sweep_status(name, trial_ids, snapshot, store, _deaths(seen[name]), self._reader)
            for name, trial_ids in self.planned.items()
        ]
        for state in filter(self._is_due, states):
            if self._with_costs:
                self._costs[state.name] = _reckon(store, snapshot, state.name, self._reader)
            if self._with_events:
                self._launches[state.name] = last_launch(store, state.name)
        if any(state.counts()["running"] for state in states):
            if time.monotonic() - self._live_at >= self._live_every_s:
                self._logged, self._live_at = self._live.look(), time.monotonic()
        else:
            self._logged, self._live_at = [], float("-inf")
        packs = newest_rows(self._logged, snapshot.source_of.keys())
        costs = {name: self._costs[name] for name in self.planned if name in self._costs}
        told = {name: told for name in self.planned if (told := self._launches.get(name)) is not None}
        jobs = [_counts(seen[state.name]) for state in states]
        return Look(states, jobs, costs, running_trials(states, packs), told, snapshot, packs)

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


def show_status(
    given: str | None, store: Store, *, watch: bool, as_json: bool, textfile: Path | None = None, wide: bool = False
) -> None:
    """Print how many trials of a sweep, or of all sweeps, are in which state; of one sweep also what it has cost.

    `textfile` gets the same for Prometheus, of all sweeps that are meant. A store that stops answering while it is watched
    is asked again.

    Raises:
        ValueError: there is no such sweep, or none at all, or the file cannot be written.
    """
    if textfile is not None:
        check_library()
        check_output(textfile)
    watched = Watched(
        store,
        planned_trials(given, store),
        with_costs=given is not None or textfile is not None,
        with_events=watch or as_json,
    )
    console = make_console()
    for found in looks(store, watched.look, WATCH_EVERY_S, time.sleep) if watch else [watched.look()]:
        if textfile is not None:
            write_textfile(textfile, found.states, found.costs)
        if as_json:
            each = zip(found.states, found.jobs, strict=True)
            print_json([_as_json(state, counts, found) for state, counts in each])
        else:
            if watch and console.is_terminal:
                console.clear()
            _print_look(console, found, wide=wide, with_costs=given is not None)
        if not found.num_open:
            return


def _print_look(console: Console, found: Look, *, wide: bool, with_costs: bool) -> None:
    _print_states(console, found.states, found.jobs, wide=wide)
    _print_running(console, found.running, wide=wide)
    for name, launch in found.launches.items():
        for event in launch["events"][-SHOWN_EVENTS:]:
            when = time.strftime("%H:%M:%S", time.localtime(event["at"]))
            console.print(printable(f"{name} {when}: {event['text']}"), highlight=False, markup=False)
    if with_costs:
        for line in (line for name, cost in found.costs.items() for line in cost_lines(name, cost)):
            console.print(printable(line), highlight=False, markup=False)
    print_warnings(list(dict.fromkeys(problem for state in found.states for problem in state.problems)))


class Controllers:
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

    def look(self, sweep: str) -> _Seen:
        """Return executor -> what its scheduler last said of a sweep's jobs."""
        due, pause_s = self._next.get(sweep, (float("-inf"), ASK_EVERY_S / ASK_LESS))
        if self._clock() >= due:
            answer = self._ask(self._store, sweep)
            is_same = sweep in self._answers and answer == self._answers[sweep]
            pause_s = min(ASK_SELDOM_S, ASK_LESS * pause_s) if is_same else ASK_EVERY_S
            self._answers[sweep], self._next[sweep] = answer, (self._clock() + pause_s, pause_s)
        return self._answers[sweep]


def _counts(seen: _Seen) -> _Counts:
    return {executor: None if each is None else each.counts for executor, each in seen.items()}


def _deaths(seen: _Seen) -> list[Record]:
    return [record for each in seen.values() if each is not None for record in each.deaths]


def _reckon(store: Store, snapshot: Snapshot, sweep: str, reader: RecordReader) -> Reckoning:
    rows = snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_pylist()
    return reckon(read_records_of(store, snapshot, sweep, reader), rows, time.time())


def _as_json(state: SweepStatus, jobs: _Counts, found: Look) -> dict[str, Any]:
    cost = {"cost": found.costs[state.name].to_json()} if state.name in found.costs else {}
    live = {"live": [each.to_json() for each in found.running if each.sweep == state.name]}
    launch = found.launches.get(state.name, {})
    told = {"scheduler_calls": launch.get("scheduler_calls", {}), "events": launch.get("events", [])}
    return state.to_json() | live | cost | _jobs_json(jobs) | told


def _jobs_json(jobs: _Counts) -> dict[str, Any]:
    return {f"{executor}_jobs": None if counts is None else asdict(counts) for executor, counts in jobs.items()}


def _print_states(console: Console, states: Sequence[SweepStatus], jobs: Sequence[_Counts], *, wide: bool) -> None:
    rows = [[s.name, len(s.states), *s.counts().values(), round(s.trial_hours(), 3)] for s in states]
    print_rows(console, ["sweep", "trials", *TrialState, "trial-hours"], rows, wide=wide)
    for state, of_executors in zip(states, jobs, strict=True):
        for executor, counts in of_executors.items():
            if counts is not None:
                title = schedulers()[executor].title
                console.print(f"{state.name}: {job_words(counts, title)}", highlight=False, markup=False)
    for state in states:
        for record in state.stalled[:5]:
            console.print(printable(stalled_words(state.name, record)), highlight=False, markup=False)
        for message, count in state.errors().most_common(5):
            text = printable(f"{state.name}: {counted(count, 'trial')} failed with: {message}")
            console.print(text, highlight=False, markup=False)


def _print_running(console: Console, running: Sequence[RunningTrial], *, wide: bool) -> None:
    """Print what trials that run have logged last."""
    if running:
        print_rows(console, *running_table(running), wide=wide)
    if len(running) > SHOWN_RUNNING:
        console.print(f"and {len(running) - SHOWN_RUNNING} more that run", highlight=False)


def stalled_words(sweep: str, record: Record) -> str:
    """Say which attempt comes no further, and how to end it."""
    text = f"{sweep}: {who(record)}: no progress for {stalled_s(record) / 60:.0f} min"
    text += f", at step {record['step']}/{record['num_steps'] or '?'}"
    return f"{text}; end it: depthrate cancel {sweep} --force, or launch with --stall-minutes"


def job_words(counts: JobCounts, title: str) -> str:
    """Say how many jobs a scheduler has of a sweep, and why they wait."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.items())
    wait = counted(counts.waiting, f"{title} job waits", f"{title} jobs wait")
    return wait + (f" ({reasons})" if reasons else "") + f", {counts.running} run"


@declared(__doc__)
@click.argument("sweep", required=False, help="A sweep; default: all sweeps of the store.")
@store_option
@click.option("--watch", is_flag=True, help="Refresh every two seconds until all is done.")
@json_option
@click.option("--prometheus", type=FILE, help="Write the same for Prometheus' node exporter: a file NAME.prom.")
@wide_option
def command(sweep: str | None, store: str | None, watch: bool, json: bool, prometheus: Path | None, wide: bool) -> None:
    show_status(sweep, existing_store(store), watch=watch, as_json=json, textfile=prometheus, wide=wide)
