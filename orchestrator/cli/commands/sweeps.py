"""`depthrate sweeps`: list, remove, restore and rename the sweeps of a store."""

import time
from dataclasses import replace

import click

from depthrate.orchestrator.api.find_sweep import launched_sweep, write_missing_lists
from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.record import describe_attempt
from depthrate.orchestrator.cli.options import (
    GRACE_NOTE,
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
from depthrate.storage.catalog.fits import rename_fits
from depthrate.storage.catalog.removals import Removal, RemovalKind, restore
from depthrate.storage.catalog.specs import LaunchedSpec, newest_specs, read_specs, sweep_of_launch, write_spec
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import identity, renaming_path
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep
from depthrate.storage.query.membership import read_membership


def _removed_json(removal: Removal) -> dict[str, object]:
    return {"sweep": removal.sweep, "removed_at": removal.removed_at, "trials": len({t for t, _ in removal.rows})}


def _require_ended(store: Store, snapshot: Snapshot, sweep: str) -> None:
    now = time.time()
    if live := [record for record in read_records(store, snapshot, sweep=sweep) if is_live(record, now)]:
        stop = next_call("cancel", sweep, store.url)
        raise UsageError(f"sweep {sweep!r} is running: {describe_attempt(live[0])}. Cancel it first: {stop}")


def _unknown(store: Store, sweep: str, snapshot: Snapshot) -> str:
    names = sorted(newest_specs(store).keys() | read_membership(store, snapshot).of_sweep.keys())
    return f"no sweep {sweep!r} in {store.url}, which has: {', '.join(names) or 'none'}"


def _renaming(store: Store, new: str) -> tuple[str, bool] | None:
    """Return (previous name of a sweep, whether its renaming is complete), or None if it was not renamed."""
    try:
        fields = read_with_digest(store.read(renaming_path(new)))
        return str(fields["from"]), fields["is_over"] is True
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _write_renaming(store: Store, old: str, new: str, *, is_over: bool) -> None:
    store.write(renaming_path(new), with_digest({"from": old, "is_over": is_over}), durable=True)


def _launches(store: Store, sweep: str) -> list[LaunchedSpec]:
    """Return the launches of a sweep in order."""
    return sorted(read_specs(store, identity(sweep)), key=lambda spec: (spec.number, spec.launched_at))


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
        print_json({"sweeps": entries, "removed": [_removed_json(removal) for removal in removed]})
        return
    print_table(console, ["sweep", "trials", "committed", "last launch (UTC)"], rows)
    for removal in removed:
        action = "removed" if removal.rows else "removed or renamed"  # a rename moves the trials too
        command = next_call("sweeps", "restore", None, removal.sweep, "--store", opened.url)
        count = counted(len({t for t, _ in removal.rows}), "trial")
        console.print(f"{action}: {removal.sweep}, {count}. Restore: {command}")


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
        raise UsageError(_unknown(opened, sweep, snapshot))
    _require_ended(opened, snapshot, sweep)
    removed = plan.trial_ids() & snapshot.trial_ids()
    console.print(f"sweep {sweep}: {counted(len(removed), 'committed trial')} to remove")
    if plan.kept:
        members = read_membership(opened, snapshot).of_sweep
        counts = {name: len(ids & plan.kept) for name, ids in members.items() if name != sweep}
        names = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count) or "earlier launches"
        console.print(f"{counted(len(plan.kept), 'trial')} kept for other sweeps: {names}")
    if not yes:
        command = next_call("sweeps", "rm", None, sweep, "--yes", "--store", opened.url)
        console.print(f"nothing was removed. To remove: {command}")
        return
    remove_sweep(opened, plan)
    command = next_call("sweeps", "restore", None, sweep, "--store", opened.url)
    console.print(f"removed. It can be restored until {GRACE_NOTE}: {command}")


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


@command.declared("rename")
@launched_argument
@click.argument("name", help="New name.")
@store_option
def rename_sweep(sweep: str, name: str, store: str | None) -> None:
    """Rename a sweep."""
    # trials do not store the name. An interrupted renaming continues with the next call, since it is recorded first
    if sweep_of_launch(sweep) != sweep:
        raise UsageError(
            f"{sweep} is an earlier launch of {sweep_of_launch(sweep)}, which is renamed with all launches."
        )
    opened, console = existing_store(store, writes=True), make_console()
    identity(name)
    snapshot, specs = take_snapshot(opened), _launches(opened, sweep)
    recorded = _renaming(opened, name)
    if recorded == (sweep, True) and not specs and name in newest_specs(opened):
        console.print(f"{sweep} was already renamed to {name}")
        return
    is_resumed = recorded == (sweep, False)
    if not specs and not is_resumed:
        raise UsageError(_unknown(opened, sweep, snapshot))
    if name in newest_specs(opened) and not is_resumed:
        raise UsageError(f"sweep {name!r} exists already in {opened.url}. Give another name.")
    _require_ended(opened, snapshot, sweep)
    if any("search" in spec.spec for spec in specs):
        raise UsageError(f"sweep {sweep!r} cannot be renamed, because the proposals of its search contain the name")
    require_clock(opened)
    _write_renaming(opened, sweep, name, is_over=False)
    listed = {spec.spec_hash for spec in _launches(opened, name) if spec.trial_ids(opened) is not None}
    renamed = [(spec, launched_sweep(spec, opened).replace(name=name)) for spec in specs]
    pending = [spec for spec, changed in renamed if changed.spec_hash() not in listed]
    if pending:
        write_missing_lists(opened)
        for spec, changed in renamed:
            if spec in pending:
                write_spec(opened, name, changed.spec_hash(), changed.spec(), spec.trial_ids(opened) or ())
    rename_fits(opened, sweep, name)
    plan = plan_removal(opened, take_snapshot(opened), sweep)
    if plan.paths:
        remove_sweep(opened, replace(plan, rows=frozenset()))
    _write_renaming(opened, sweep, name, is_over=True)
    console.print(f"renamed {sweep} to {name}. Sweep files are not changed.")
