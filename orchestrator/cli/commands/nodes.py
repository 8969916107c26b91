"""`depthrate nodes`: show what each node has done of a sweep, what failed there, how, and which nodes launches avoid."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict

import click

from depthrate.orchestrator.api.find_sweep import planned_trials
from depthrate.orchestrator.attempts.node_health import COOLDOWN_S, NodeHealth, read_cleared, write_cleared
from depthrate.orchestrator.cli.options import declared, json_option, launched_argument, store_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import make_console, print_json, print_table
from depthrate.orchestrator.monitor.cost import NodeCost, compute_cost
from depthrate.storage.attempts.records import read_records_of
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, existing_store

SHOWN_ERRORS = 5
"""Nodes whose last failure is shown in words."""


def clear_node(given: str, node: str, store: Store) -> None:
    """Have launches of a sweep begin packs on a node again that they avoid.

    Raises:
        ValueError: there is no such sweep, or nothing of it ever ran on that node.
    """
    (sweep,) = planned_trials(given, store)
    hosts = {str(record["host"]) for record in read_records_of(store, take_snapshot(store), sweep)}
    if node not in hosts:
        raise UsageError(
            f"nothing of sweep {sweep!r} ran on {node!r}; it ran on {', '.join(sorted(hosts)) or 'no node'}"
        )
    try:
        write_cleared(store, sweep, node)
    except OSError as error:
        raise UsageError(
            f"node {node!r} was not cleared: store {store.url} cannot be written ({error.strerror or error}); run this as a "
            "user who may write there"
        ) from None
    make_console().print(f"{node} is used again")


def show_nodes(given: str, store: Store, *, as_json: bool) -> None:
    """Print a row for each node that ran anything of a sweep, those that wasted most first.

    Raises:
        ValueError: there is no such sweep.
    """
    (sweep,) = planned_trials(given, store)
    snapshot = take_snapshot(store)
    records = read_records_of(store, snapshot, sweep)
    rows = snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_pylist()
    found = compute_cost(records, rows, time.time()).nodes.values()
    health = NodeHealth()
    health.add_records(records, read_cleared(store, sweep), time.time())
    for node in found:
        if node.node in health.unhealthy:
            node.avoided = health.describe(node.node)
        elif node.node in health.cooling_down:
            node.avoided = f"{health.describe(node.node)}: for {COOLDOWN_S / 60:.0f} min after its last failure"
    nodes = sorted(found, key=lambda node: (-node.wasted_hours, -sum(node.failures.values()), node.node))
    if as_json:
        print_json([asdict(node) | {"failures": dict(node.failures)} for node in nodes])
        return
    console = make_console()
    columns = ["node", "attempts", "done", "failed", "hours", "wasted (h)", "failures"]
    print_table(console, columns, [_row(node) for node in nodes])
    for node in [each for each in nodes if each.avoided]:
        undo = f"depthrate nodes {shlex.quote(sweep)} --clear {shlex.quote(node.node)}"
        text = f"{node.node} is avoided: {node.avoided}; when it is repaired: {undo}"
        console.print(text)
    for node in [each for each in nodes if each.last_failed_at is not None][:SHOWN_ERRORS]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(node.last_failed_at))
        error = " ".join(node.last_error.split())
        console.print(f"{node.node}, last failure {when}: {error:.300}")


def _row(node: NodeCost) -> list[object]:
    kinds = ", ".join(f"{kind} {number}" for kind, number in node.failures.most_common())
    failed = sum(node.failures.values())
    return [node.node, node.attempts, node.done, failed, round(node.hours, 3), round(node.wasted_hours, 3), kinds]


@declared(__doc__)
@launched_argument
@store_option
@json_option
@click.option("--clear", metavar="NODE", help="Clear a repaired node's failures so launches use it again.")
def command(sweep: str, store: str | None, json: bool, clear: str | None) -> None:
    if clear is not None:
        clear_node(sweep, clear, existing_store(store, writes=True))
    show_nodes(sweep, existing_store(store), as_json=json)
