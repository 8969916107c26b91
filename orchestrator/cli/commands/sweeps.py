"""`depthrate sweeps`: list, remove and restore the sweeps of a store."""

import time

import click

from depthrate.orchestrator.api.find_sweep import write_missing_lists
from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.record import describe_attempt
from depthrate.orchestrator.cli.options import (
    declared_group,
    json_option,
    launched_argument,
    store_option,
    yes_option,
)
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_table
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.removals import RemovalKind, restore
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import existing_store
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep
from depthrate.storage.query.membership import read_membership

command = declared_group(__doc__)


@command.declared("list")
@store_option
@json_option
def show_list(store: str | None, json: bool) -> None:
    """List the sweeps of a store with their requested and committed trials."""
    opened, console = existing_store(store), make_console()
    snapshot = take_snapshot(opened)
    members, launched = read_membership(opened, snapshot).of_sweep, newest_specs(opened)
    names = sorted(members.keys() | launched.keys())
    requested = {name: len(launched[name].trial_ids(opened) or ()) or None for name in launched}
    launched_at = {name: launched[name].launched_at[:16].replace("T", " ") for name in launched}
    rows = [[name, requested.get(name), len(members.get(name, ())), launched_at.get(name)] for name in names]
    removed = [removal for removal in snapshot.removals.removals if removal.kind is RemovalKind.SWEEP]
    if json:
        entries = [dict(zip(("sweep", "trials", "committed", "launched_at"), row, strict=True)) for row in rows]
        counts = [len({trial_id for trial_id, _ in removal.rows}) for removal in removed]
        gone = [
            {"sweep": r.sweep, "removed_at": r.removed_at, "trials": n} for r, n in zip(removed, counts, strict=True)
        ]
        print_json({"sweeps": entries, "removed": gone})
        return
    print_table(console, ["sweep", "trials", "committed", "last launch (UTC)"], rows)
    for removal in removed:
        command = next_call("sweeps", "restore", None, removal.sweep, "--store", opened.url)
        count = counted(len({t for t, _ in removal.rows}), "trial")
        console.print(f"removed: {removal.sweep}, {count}. Restore: {command}")


@command.declared("rm")
@launched_argument
@store_option
@yes_option
def rm(sweep: str, store: str | None, yes: bool) -> None:
    """Remove a sweep and the trials that no other sweep requests. Safe during runs."""
    if "@" in sweep:  # the trials of an earlier launch, without a file of their own
        from depthrate.orchestrator.cli.commands import trials  # imports duckdb, which other subcommands do not need

        assert trials.rm.callback is not None
        trials.rm.callback((), f"sweep = '{sweep}'", store, yes)
        return
    opened, console = existing_store(store, writes=True), make_console()
    write_missing_lists(opened, removed=sweep)
    snapshot = take_snapshot(opened)
    plan = plan_removal(opened, snapshot, sweep)
    if not plan.paths and not plan.rows:
        names = sorted(newest_specs(opened).keys() | read_membership(opened, snapshot).of_sweep.keys())
        raise UsageError(f"no sweep {sweep!r} in {opened.url}, which has: {', '.join(names) or 'none'}")
    now = time.time()
    if live := [record for record in read_records(opened, snapshot, sweep=sweep) if is_live(record, now)]:
        stop = next_call("cancel", sweep, opened.url)
        raise UsageError(f"sweep {sweep!r} is running: {describe_attempt(live[0])}. Cancel it first: {stop}")
    removed = plan.trial_ids() & snapshot.trial_ids()
    console.print(f"sweep {sweep}: {counted(len(removed), 'committed trial')} to remove")
    if plan.kept:
        members = read_membership(opened, snapshot).of_sweep
        counts = {name: len(ids & plan.kept) for name, ids in members.items() if name != sweep}
        others = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count) or "earlier launches"
        console.print(f"{counted(len(plan.kept), 'trial')} kept for other sweeps: {others}")
    if not yes:
        command = next_call("sweeps", "rm", None, sweep, "--yes", "--store", opened.url)
        console.print(f"nothing was removed. To remove: {command}")
        return
    remove_sweep(opened, plan)
    command = next_call("sweeps", "restore", None, sweep, "--store", opened.url)
    console.print(f"removed. It can be restored until depthrate compact --purge deletes it: {command}")


@command.declared("restore")
@click.argument("sweep", help="Name of a removed sweep.")
@store_option
def restore_sweep(sweep: str, store: str | None) -> None:
    """Restore a removed sweep, until a compaction purges its trials."""
    opened, console = existing_store(store, writes=True), make_console()
    snapshot = take_snapshot(opened)
    removed = [removal for removal in snapshot.removals.removals if removal.kind is RemovalKind.SWEEP]
    removals = [removal for removal in removed if removal.sweep == sweep]
    if not removals:
        names = ", ".join(sorted({removal.sweep for removal in removed})) or "none"
        raise UsageError(f"no removed sweep {sweep!r} to restore in {opened.url}, which has: {names}")
    from depthrate.orchestrator.cli.commands.trials import print_restored  # imports duckdb

    require_clock(opened)
    restore(opened, removals)
    print_restored(opened, removals, sweep, console)
