"""`depthrate status`: the table of all sweeps, once, or again and again until all is done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from depthrate.orchestrator.commands.named_sweep import planned_trials
from depthrate.orchestrator.executors.submissions import job_counts
from depthrate.orchestrator.status import STATES, SweepStatus, sweep_status
from depthrate.orchestrator.terminal import make_console, print_json, print_table, print_warnings
from depthrate.storage.cache import SnapshotCache
from depthrate.storage.snapshot import take_snapshot
from depthrate.storage.store import Store

WATCH_EVERY_S = 2.0


def show_status(given: str | None, store: Store, *, watch: bool, as_json: bool) -> None:
    """Print how many trials of a sweep, or of all sweeps, are in which state.

    Raises:
        ValueError: there is no such sweep, or none at all.
    """
    planned = planned_trials(given, store)
    console, cache = make_console(), SnapshotCache()
    while True:
        snapshot = take_snapshot(store, cache=cache)
        states = [sweep_status(name, trial_ids, snapshot, store) for name, trial_ids in planned.items()]
        jobs = {name: counts for name in planned if (counts := job_counts(store, name)) is not None}
        if as_json:
            print_json([state.to_json() | {"slurm_jobs": jobs.get(state.name)} for state in states])
        else:
            if watch and console.is_terminal:
                console.clear()
            _print_states(console, states, jobs)
            print_warnings(snapshot.problems)
        open_trials = sum(state.counts()["pending"] + state.counts()["running"] for state in states)
        if not watch or not open_trials:
            return
        time.sleep(WATCH_EVERY_S)


def _print_states(console: Console, states: Sequence[SweepStatus], jobs: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [[s.name, len(s.states), *s.counts().values(), round(s.trial_hours(), 3)] for s in states]
    print_table(console, ["sweep", "trials", *STATES, "trial-hours"], rows)
    for name, counts in jobs.items():
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts["reasons"].items())
        text = f"{name}: {counts['waiting']} SLURM jobs wait" + (f" ({reasons})" if reasons else "")
        console.print(f"{text}, {counts['running']} run", highlight=False, markup=False)
    for state in states:
        for message, count in state.errors().most_common(5):
            console.print(f"{state.name}: {count} trials failed with: {message}", highlight=False, markup=False)
