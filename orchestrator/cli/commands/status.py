"""`depthrate status`: show the number of trials per state, and the cost of a single sweep."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from depthrate.orchestrator.api.find_sweep import planned_trials
from depthrate.orchestrator.api.status import (
    MAX_EVENTS_SHOWN,
    POLL_INTERVAL_S,
    StatusPoller,
    StatusSnapshot,
    job_text,
)
from depthrate.orchestrator.attempts.record import stalled_text
from depthrate.orchestrator.cli.options import declared, json_option, store_option, wide_option
from depthrate.orchestrator.console.tables import (
    counted,
    make_console,
    print_json,
    print_line,
    print_rows,
    print_warnings,
)
from depthrate.orchestrator.executors.base import Answers
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.orchestrator.monitor.cost import cost_lines
from depthrate.orchestrator.monitor.running_trials import MAX_TRIALS_SHOWN, running_table
from depthrate.orchestrator.monitor.status import SweepStatus, TrialState
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.store import Store, StoreError, existing_store


def poll_until_closed(store: Store, poll: Callable[[], StatusSnapshot]) -> Iterator[StatusSnapshot]:
    """Poll a store until interrupted. Errors after the first answer are only printed.

    Raises:
        OSError, StoreError: The first poll failed.
    """
    has_answered = False
    while True:
        try:
            snapshot = poll()
        except (OSError, StoreError) as error:
            if not has_answered:
                raise
            print_line(f"warning: store {store.url} does not answer ({first_line(error)}). Retrying.", stderr=True)
        else:
            has_answered = True
            yield snapshot
        time.sleep(POLL_INTERVAL_S)


def _print_status(console: Console, snapshot: StatusSnapshot, *, wide: bool, with_costs: bool) -> None:
    rows = [[s.name, len(s.states), *s.counts().values(), round(s.trial_hours(), 3)] for s in snapshot.states]
    print_rows(console, ["sweep", "trials", *TrialState, "trial-hours"], rows, wide=wide)
    for name, answers in snapshot.answers.items():
        for executor, answer in answers.items():
            if answer is not None and answer.counts is not None:
                console.print(f"{name}: {job_text(answer.counts, schedulers()[executor].title)}")
    for name, text in snapshot.unattended.items():
        console.print(f"{name}: {text}")
    for state in snapshot.states:
        for record in state.stalled[:5]:
            console.print(f"{state.name}: {stalled_text(record)}")
        for message, count in state.errors().most_common(5):
            console.print(f"{state.name}: {counted(count, 'trial')} failed with: {message}")
    if snapshot.running:
        print_rows(console, *running_table(snapshot.running), wide=wide)
    if len(snapshot.running) > MAX_TRIALS_SHOWN:
        console.print(f"and {len(snapshot.running) - MAX_TRIALS_SHOWN} more running")
    for name, launch in snapshot.launches.items():
        for event in launch["events"][-MAX_EVENTS_SHOWN:]:
            when = time.strftime("%H:%M:%S", time.localtime(event["at"]))
            console.print(f"{name} {when}: {event['text']}")
    if with_costs:
        for line in (line for name, cost in snapshot.costs.items() for line in cost_lines(name, cost)):
            console.print(line)
    print_warnings(list(dict.fromkeys(problem for state in snapshot.states for problem in state.problems)))


def _as_json(state: SweepStatus, answers: Answers, snapshot: StatusSnapshot) -> dict[str, Any]:
    cost = {"cost": snapshot.costs[state.name].to_json()} if state.name in snapshot.costs else {}
    live = {"live": [trial.to_json() for trial in snapshot.running if trial.sweep == state.name]}
    launch = snapshot.launches.get(state.name, {})
    events = {"scheduler_calls": launch.get("scheduler_calls", {}), "events": launch.get("events", [])}
    counts = {name: None if answer is None else answer.counts for name, answer in answers.items()}
    jobs_json = {f"{name}_jobs": None if of_jobs is None else asdict(of_jobs) for name, of_jobs in counts.items()}
    unattended = {"unattended": state.name in snapshot.unattended}
    return state.to_json() | unattended | live | cost | jobs_json | events


@declared(__doc__)
@click.argument("sweep", required=False, help="Name or file of a sweep. Default: all sweeps of the store.")
@store_option
@click.option("--watch", is_flag=True, help="Refresh every two seconds until all trials are done.")
@json_option
@wide_option
def command(sweep: str | None, store: str | None, watch: bool, json: bool, wide: bool) -> None:
    opened = existing_store(store)
    planned = planned_trials(sweep, opened, lambda text: print_warnings([text]))
    watched = StatusPoller(opened, planned, with_costs=sweep is not None, with_events=watch or json)
    console = make_console()
    for snapshot in poll_until_closed(opened, watched.poll) if watch else [watched.poll()]:
        if json:
            print_json([_as_json(state, snapshot.answers[state.name], snapshot) for state in snapshot.states])
        else:
            if watch and console.is_terminal:
                console.clear()
            _print_status(console, snapshot, wide=wide, with_costs=sweep is not None)
        if not snapshot.num_open:
            return
