"""`depthrate nodes`: show attempts, failures and hours per node, and excluded nodes."""

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
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.specs import sweep_of_launch
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, existing_store

MAX_ERRORS_SHOWN = 5
"""Maximum number of nodes whose last failure is printed."""


def clear_node(sweep_ref: str, node: str, store: Store) -> None:
    """Clear the failure history of a node, so that launches of a sweep use it again.

    Raises:
        ValueError: The sweep is unknown or never ran on this node.
    """
    sweep = sweep_of_launch(*planned_trials(sweep_ref, store))
    hosts = {str(record["host"]) for record in read_records(store, take_snapshot(store), sweep=sweep)}
    if node not in hosts:
        raise UsageError(
            f"sweep {sweep!r} never ran on node {node!r}. It ran on: {', '.join(sorted(hosts)) or 'no node'}"
        )
    try:
        write_cleared(store, sweep, node)
    except OSError as error:
        raise UsageError(
            f"node {node!r} was not cleared: cannot write to store {store.url} ({error.strerror or error}). Run this as a "
            "user with write permission."
        ) from None
    make_console().print(f"node {node}: failures cleared, launches use it again")


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
    opened = existing_store(store)
    name = sweep_of_launch(*planned_trials(sweep, opened))
    snapshot = take_snapshot(opened)
    records = read_records(opened, snapshot, sweep=name)
    rows = snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_pylist()
    costs = compute_cost(records, rows, time.time()).nodes.values()
    health = NodeHealth()
    health.add_records(records, read_cleared(opened, name), time.time())
    for node in costs:
        if node.node in health.unhealthy:
            node.avoided = health.describe(node.node)
        elif node.node in health.cooling_down:
            node.avoided = f"{health.describe(node.node)}: for {COOLDOWN_S / 60:.0f} min after its last failure"
    nodes = sorted(costs, key=lambda node: (-node.wasted_hours, -sum(node.failures.values()), node.node))
    if json:
        print_json([asdict(node) | {"failures": dict(node.failures)} for node in nodes])
        return
    console = make_console()
    columns = ["node", "attempts", "done", "failed", "hours", "wasted (h)", "failures"]
    print_table(console, columns, [_row(node) for node in nodes])
    for node in [node for node in nodes if node.avoided]:
        undo = f"depthrate nodes {shlex.quote(name)} --clear {shlex.quote(node.node)}"
        console.print(f"node {node.node} is excluded: {node.avoided}. Once repaired: {undo}")
    for node in [node for node in nodes if node.last_failed_at is not None][:MAX_ERRORS_SHOWN]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(node.last_failed_at))
        error = " ".join(node.last_error.split())
        console.print(f"{node.node}, last failure {when}: {error:.300}")
