"""`depthrate nodes`: show what each node has done of a sweep, what failed there, and how."""

from __future__ import annotations

import time
from dataclasses import asdict

from depthrate.orchestrator.cli.find_sweep import planned_trials
from depthrate.orchestrator.cli.options import declared, json_option, launched_argument, store_option
from depthrate.orchestrator.console.tables import make_console, print_json, print_table, printable
from depthrate.orchestrator.monitor.cost import NodeReckoning, reckon
from depthrate.storage.attempts.records import read_records_of
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, existing_store

SHOWN_ERRORS = 5
"""Nodes whose last failure is shown in words."""


def show_nodes(given: str, store: Store, *, as_json: bool) -> None:
    """Print a row for each node that ran anything of a sweep, those that wasted most first.

    Raises:
        ValueError: there is no such sweep.
    """
    (sweep,) = planned_trials(given, store)
    snapshot = take_snapshot(store)
    records = read_records_of(store, snapshot, sweep)
    rows = snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_pylist()
    found = reckon(records, rows, time.time()).nodes.values()
    nodes = sorted(found, key=lambda node: (-node.wasted_hours, -sum(node.failures.values()), node.node))
    if as_json:
        print_json([asdict(node) | {"failures": dict(node.failures)} for node in nodes])
        return
    console = make_console()
    columns = ["node", "attempts", "done", "failed", "hours", "wasted", "kinds of failure"]
    print_table(console, columns, [_row(node) for node in nodes])
    for node in [each for each in nodes if each.last_failed_at is not None][:SHOWN_ERRORS]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(node.last_failed_at))
        error = " ".join(node.last_error.split())
        console.print(printable(f"{node.node}, last failure {when}: {error:.300}"), highlight=False, markup=False)


def _row(node: NodeReckoning) -> list[object]:
    kinds = ", ".join(f"{kind} {number}" for kind, number in node.failures.most_common())
    failed = sum(node.failures.values())
    return [node.node, node.attempts, node.done, failed, round(node.hours, 3), round(node.wasted_hours, 3), kinds]


@declared(__doc__)
@launched_argument
@store_option
@json_option
def command(sweep: str, store: str | None, json: bool) -> None:
    show_nodes(sweep, existing_store(store), as_json=json)
