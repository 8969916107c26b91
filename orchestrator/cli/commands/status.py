"""`depthrate status`: show how many trials are done, running, failed and pending; of one sweep also what it has cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from depthrate.orchestrator.api.find_sweep import planned_trials
from depthrate.orchestrator.api.status import (
    SHOWN_EVENTS,
    WATCH_EVERY_S,
    Counts,
    StatusSnapshot,
    Watched,
    job_words,
    stalled_words,
)
from depthrate.orchestrator.cli.options import FILE, declared, json_option, store_option, wide_option
from depthrate.orchestrator.cli.polling import poll_until_closed
from depthrate.orchestrator.console.output_file import check_output
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_rows, print_warnings
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.orchestrator.monitor.cost import cost_lines
from depthrate.orchestrator.monitor.prometheus import check_library, write_textfile
from depthrate.orchestrator.monitor.running_trials import MAX_TRIALS_SHOWN, RunningTrial, running_table
from depthrate.orchestrator.monitor.status import SweepStatus, TrialState
from depthrate.storage.files.store import Store, existing_store


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
    for found in poll_until_closed(store, watched.poll, WATCH_EVERY_S, time.sleep) if watch else [watched.poll()]:
        if textfile is not None:
            write_textfile(textfile, found.states, found.costs)
        if as_json:
            each = zip(found.states, found.jobs, strict=True)
            print_json([_as_json(state, counts, found) for state, counts in each])
        else:
            if watch and console.is_terminal:
                console.clear()
            _print_status(console, found, wide=wide, with_costs=given is not None)
        if not found.num_open:
            return


def _print_status(console: Console, found: StatusSnapshot, *, wide: bool, with_costs: bool) -> None:
    _print_states(console, found.states, found.jobs, wide=wide)
    _print_running(console, found.running, wide=wide)
    for name, launch in found.launches.items():
        for event in launch["events"][-SHOWN_EVENTS:]:
            when = time.strftime("%H:%M:%S", time.localtime(event["at"]))
            console.print(f"{name} {when}: {event['text']}")
    if with_costs:
        for line in (line for name, cost in found.costs.items() for line in cost_lines(name, cost)):
            console.print(line)
    print_warnings(list(dict.fromkeys(problem for state in found.states for problem in state.problems)))


def _as_json(state: SweepStatus, jobs: Counts, found: StatusSnapshot) -> dict[str, Any]:
    cost = {"cost": found.costs[state.name].to_json()} if state.name in found.costs else {}
    live = {"live": [each.to_json() for each in found.running if each.sweep == state.name]}
    launch = found.launches.get(state.name, {})
    told = {"scheduler_calls": launch.get("scheduler_calls", {}), "events": launch.get("events", [])}
    return state.to_json() | live | cost | _jobs_json(jobs) | told


def _jobs_json(jobs: Counts) -> dict[str, Any]:
    return {f"{executor}_jobs": None if counts is None else asdict(counts) for executor, counts in jobs.items()}


def _print_states(console: Console, states: Sequence[SweepStatus], jobs: Sequence[Counts], *, wide: bool) -> None:
    rows = [[s.name, len(s.states), *s.counts().values(), round(s.trial_hours(), 3)] for s in states]
    print_rows(console, ["sweep", "trials", *TrialState, "trial-hours"], rows, wide=wide)
    for state, of_executors in zip(states, jobs, strict=True):
        for executor, counts in of_executors.items():
            if counts is not None:
                title = schedulers()[executor].title
                console.print(f"{state.name}: {job_words(counts, title)}")
    for state in states:
        for record in state.stalled[:5]:
            console.print(stalled_words(state.name, record))
        for message, count in state.errors().most_common(5):
            console.print(f"{state.name}: {counted(count, 'trial')} failed with: {message}")


def _print_running(console: Console, running: Sequence[RunningTrial], *, wide: bool) -> None:
    """Print what trials that run have logged last."""
    if running:
        print_rows(console, *running_table(running), wide=wide)
    if len(running) > MAX_TRIALS_SHOWN:
        console.print(f"and {len(running) - MAX_TRIALS_SHOWN} more that run")


@declared(__doc__)
@click.argument("sweep", required=False, help="A sweep; default: all sweeps of the store.")
@store_option
@click.option("--watch", is_flag=True, help="Refresh every two seconds until all is done.")
@json_option
@click.option("--prometheus", type=FILE, help="Write the same for Prometheus' node exporter: a file NAME.prom.")
@wide_option
def command(sweep: str | None, store: str | None, watch: bool, json: bool, prometheus: Path | None, wide: bool) -> None:
    show_status(sweep, existing_store(store), watch=watch, as_json=json, textfile=prometheus, wide=wide)
