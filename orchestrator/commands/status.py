"""`depthrate status`: the table of all sweeps, once, or again and again until all is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from depthrate.orchestrator.attempt import stalled_s, who
from depthrate.orchestrator.commands.find_sweep import planned_trials
from depthrate.orchestrator.executors.builtin import schedulers, silent_deaths
from depthrate.orchestrator.executors.executor import JobCounts
from depthrate.orchestrator.status import SweepStatus, TrialState, sweep_status
from depthrate.orchestrator.terminal import make_console, print_json, print_table, print_warnings, printable
from depthrate.storage.cache import SnapshotCache
from depthrate.storage.snapshot import take_snapshot
from depthrate.storage.store import Store

WATCH_EVERY_S = 2.0
_Counts = dict[str, JobCounts | None]
"""Executor -> jobs of a sweep that its scheduler has."""


def show_status(given: str | None, store: Store, *, watch: bool, as_json: bool) -> None:
    """Print how many trials of a sweep, or of all sweeps, are in which state.

    Raises:
        ValueError: there is no such sweep, or none at all.
    """
    planned = planned_trials(given, store)
    console, cache = make_console(), SnapshotCache()
    while True:
        snapshot = take_snapshot(store, cache=cache)
        states = [
            sweep_status(name, trial_ids, snapshot, store, silent_deaths(store, name))
            for name, trial_ids in planned.items()
        ]
        jobs = [_count_jobs(store, state.name) for state in states]
        if as_json:
            print_json([state.to_json() | _jobs_json(counts) for state, counts in zip(states, jobs, strict=True)])
        else:
            if watch and console.is_terminal:
                console.clear()
            _print_states(console, states, jobs)
            print_warnings(list(dict.fromkeys(problem for state in states for problem in state.problems)))
        open_trials = sum(state.counts()["pending"] + state.counts()["running"] for state in states)
        if not watch or not open_trials:
            return
        time.sleep(WATCH_EVERY_S)


def _count_jobs(store: Store, sweep: str) -> _Counts:
    return {executor: scheduler.count_jobs(store, sweep) for executor, scheduler in schedulers().items()}


def _jobs_json(jobs: _Counts) -> dict[str, Any]:
    return {f"{executor}_jobs": None if counts is None else asdict(counts) for executor, counts in jobs.items()}


def _print_states(console: Console, states: Sequence[SweepStatus], jobs: Sequence[_Counts]) -> None:
    rows = [[s.name, len(s.states), *s.counts().values(), round(s.trial_hours(), 3)] for s in states]
    print_table(console, ["sweep", "trials", *TrialState, "trial-hours"], rows)
    for state, counted in zip(states, jobs, strict=True):
        for executor, counts in counted.items():
            if counts is not None:
                title = schedulers()[executor].title
                console.print(f"{state.name}: {_job_words(counts, title)}", highlight=False, markup=False)
    for state in states:
        for record in state.stalled[:5]:
            step = f"step {record['step']}/{record['num_steps'] or '?'}"
            text = f"{state.name}: {who(record)}: no progress for {stalled_s(record) / 60:.0f} min, at {step}"
            text += f"; end it: depthrate cancel {state.name} --force, or launch with --stall-minutes"
            console.print(printable(text), highlight=False, markup=False)
        for message, count in state.errors().most_common(5):
            text = printable(f"{state.name}: {count} trials failed with: {message}")
            console.print(text, highlight=False, markup=False)


def _job_words(counts: JobCounts, title: str) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.items())
    return f"{counts.waiting} {title} jobs wait" + (f" ({reasons})" if reasons else "") + f", {counts.running} run"
