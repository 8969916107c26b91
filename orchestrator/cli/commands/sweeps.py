"""`depthrate sweeps`: the sweeps of a store: list, remove, rename, bring back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import click
from rich.console import Console

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
from depthrate.storage.attempts.records import Record, read_records_of
from depthrate.storage.catalog.fits import rename_fits
from depthrate.storage.catalog.removals import Removal, RemovalKind, restore
from depthrate.storage.catalog.specs import LaunchedSpec, newest_specs, read_specs, write_spec
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import identity, renaming_path
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.maintenance.sweep_removal import RemovalPlan, plan_removal, remove_sweep
from depthrate.storage.query.membership import read_membership


def list_sweeps(store: Store, as_json: bool, console: Console) -> None:
    """Print every sweep with its trials, and those that were removed and can be brought back."""
    snapshot = take_snapshot(store)
    members, launched = read_membership(store, snapshot).of_sweep, newest_specs(store)
    names = sorted(members.keys() | launched.keys())
    asked = {name: len(launched[name].trial_ids(store) or ()) or None for name in launched}
    ran = {name: launched[name].launched_at[:16].replace("T", " ") for name in launched}
    rows = [[name, asked.get(name), len(members.get(name, ())), ran.get(name)] for name in names]
    removed = [removal for removal in snapshot.removals.removals if removal.kind is RemovalKind.SWEEP]
    if as_json:
        listed = [dict(zip(("sweep", "trials", "committed", "launched_at"), row, strict=True)) for row in rows]
        print_json({"sweeps": listed, "removed": [_removed_json(each) for each in removed]})
        return
    print_table(console, ["sweep", "asks for", "committed", "last launch (UTC)"], rows)
    for each in removed:
        how = "removed" if each.rows else "removed or renamed"  # a new name takes the trials with it
        text = f"{how}: {each.sweep}, {len({t for t, _ in each.rows})} trials; bring it back: "
        text += next_call("sweeps", "restore", None, each.sweep, "--store", store.url)
        console.print(text)


def _removed_json(removal: Removal) -> dict[str, object]:
    return {"sweep": removal.sweep, "removed_at": removal.removed_at, "trials": len({t for t, _ in removal.rows})}


def remove_named(store: Store, sweep: str, *, is_sure: bool, grace_note: str, console: Console) -> None:
    """Say what the removal of a sweep takes away and what stays, and do it where that is wanted.

    Raises:
        UsageError: there is no such sweep, or it runs.
        ValueError: which trials another sweep asks for cannot be told.
    """
    write_missing_lists(store, removed=sweep)
    snapshot = take_snapshot(store)
    going = plan_removal(store, snapshot, sweep)
    if not going.paths and not going.rows:
        raise UsageError(_unknown(store, sweep, snapshot))
    running = _running(store, snapshot, sweep)
    if running:
        raise UsageError(
            f"sweep {sweep!r} runs: {describe_attempt(running[0])}; stop it first: {next_call('cancel', sweep, store.url)}"
        )
    _say_what_goes(console, store, snapshot, going)
    if not is_sure:
        again = next_call("sweeps", "rm", None, sweep, "--yes", "--store", store.url)
        console.print(f"nothing is removed yet; do it: {again}")
        return
    remove_sweep(store, going)
    back = next_call("sweeps", "restore", None, sweep, "--store", store.url)
    console.print(f"removed; until {grace_note} it can be brought back: {back}")


def _say_what_goes(console: Console, store: Store, snapshot: Snapshot, going: RemovalPlan) -> None:
    goes = going.trial_ids() & snapshot.trial_ids()
    console.print(f"sweep {going.sweep}: {len(goes)} committed trials go")
    if going.kept:
        members = read_membership(store, snapshot).of_sweep
        others = {name: len(ids & going.kept) for name, ids in members.items() if name != going.sweep}
        said = ", ".join(f"{name} {count}" for name, count in sorted(others.items()) if count) or "earlier launches"
        text = f"{len(going.kept)} stay, which other sweeps ask for: {said}"
        console.print(text)


def _running(store: Store, snapshot: Snapshot, sweep: str) -> list[Record]:
    now = time.time()
    return [record for record in read_records_of(store, snapshot, sweep) if is_live(record, now)]


def _unknown(store: Store, sweep: str, snapshot: Snapshot) -> str:
    there = sorted(newest_specs(store).keys() | read_membership(store, snapshot).of_sweep.keys())
    return f"there is no sweep {sweep!r} in {store.url}; there are: {', '.join(there) or 'none'}"


def restore_named(store: Store, sweep: str, console: Console) -> None:
    """Bring a removed sweep back.

    Raises:
        UsageError: no such sweep was removed, or a compaction has taken its trials away.
    """
    snapshot = take_snapshot(store)
    found = [
        removal
        for removal in snapshot.removals.removals
        if removal.kind is RemovalKind.SWEEP and removal.sweep == sweep
    ]
    if not found:
        removed = {removal.sweep for removal in snapshot.removals.removals if removal.kind is RemovalKind.SWEEP}
        known = ", ".join(sorted(removed)) or "nothing"
        raise UsageError(f"no removed sweep {sweep!r} can be brought back in {store.url}; there is: {known}")
    require_clock(store)
    restore(store, found)
    say_restored(store, found, sweep, console)


def say_restored(store: Store, removals: Iterable[Removal], what: str, console: Console) -> None:
    """Say how much of what was removed counts again: a compaction may have been at it in the same moment."""
    rows = frozenset(row for each in removals for row in each.rows)
    lost = rows & take_snapshot(store).removals.hidden
    back = len({trial_id for trial_id, _ in rows - lost})
    text = f"{what} is back, {counted(back, 'trial')} with it"
    text += f"; {len({t for t, _ in lost})} more are gone with a compaction: run them again" if lost else ""
    console.print(text)


def rename(store: Store, old: str, new: str, console: Console) -> None:
    """Give a sweep another name: its launches, its fits; its trials are found by what it asks for.

    Killed on the way it goes on when it is called again: it is written down under the new name before anything else is.

    Raises:
        UsageError: there is no such sweep, the name is taken, it runs, or it has a search.
        ForeignNameError: the name cannot be one.
    """
    identity(new)
    snapshot, specs = take_snapshot(store), _launches(store, old)
    begun = _renaming(store, new)
    if begun == (old, True) and not specs and new in newest_specs(store):
        console.print(f"{old} is called {new} already")
        return
    is_resumed = begun == (old, False)
    if not specs and not is_resumed:
        raise UsageError(_unknown(store, old, snapshot))
    if new in newest_specs(store) and not is_resumed:
        raise UsageError(f"there is a sweep {new!r} in {store.url} already; give another name")
    if running := _running(store, snapshot, old):
        stop = next_call("cancel", old, store.url)
        raise UsageError(f"sweep {old!r} runs: {describe_attempt(running[0])}; stop it first: {stop}")
    if any("search" in spec.spec for spec in specs):
        raise UsageError(f"sweep {old!r} has a search, whose proposals bear its name; it cannot be renamed")
    require_clock(store)
    _write_renaming(store, old, new, is_over=False)
    there = {spec.spec_hash for spec in _launches(store, new) if spec.trial_ids(store) is not None}
    renamed = [(spec, launched_sweep(spec, store).replace(name=new)) for spec in specs]
    left = [spec for spec, sweep in renamed if sweep.spec_hash() not in there]
    if left:
        write_missing_lists(store)
        for spec, sweep in renamed:
            if spec in left:
                write_spec(store, new, sweep.spec_hash(), sweep.spec(), spec.trial_ids(store))
    rename_fits(store, old, new)
    going = plan_removal(store, take_snapshot(store), old)
    if going.paths:
        remove_sweep(store, replace(going, rows=frozenset()))
    _write_renaming(store, old, new, is_over=True)
    console.print(f"{old} is called {new} now; a sweep file keeps the name it has")


def _renaming(store: Store, new: str) -> tuple[str, bool] | None:
    """Return (the name that a sweep had, whether its renaming is over); None where it had no other."""
    try:
        fields = read_with_digest(store.read(renaming_path(new)))
        return str(fields["from"]), fields["is_over"] is True
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _write_renaming(store: Store, old: str, new: str, *, is_over: bool) -> None:
    store.write(renaming_path(new), with_digest({"from": old, "is_over": is_over}), durable=True)


def _launches(store: Store, sweep: str) -> list[LaunchedSpec]:
    """Return the launches of a sweep in their order."""
    return sorted(read_specs(store, identity(sweep)), key=lambda spec: (spec.number, spec.launched_at))


command = declared_group(__doc__)


@command.declared("list")
@store_option
@json_option
def show_list(store: str | None, json: bool) -> None:
    """Show every sweep of a store: how many trials it asks for, how many of them are committed."""
    list_sweeps(existing_store(store), json, make_console())


@command.declared("rm")
@launched_argument
@store_option
@yes_option
def rm(sweep: str, store: str | None, yes: bool) -> None:
    """Remove a sweep with those of its trials that no other sweep asks for; safe beside running sweeps."""
    remove_named(existing_store(store, writes=True), sweep, is_sure=yes, grace_note=GRACE_NOTE, console=make_console())


@command.declared("restore")
@click.argument("sweep", help="A removed sweep.")
@store_option
def bring_back(sweep: str, store: str | None) -> None:
    """Bring a removed sweep back, until a compaction has taken its trials away."""
    restore_named(existing_store(store, writes=True), sweep, make_console())


@command.declared("rename")
@launched_argument
@click.argument("name", help="Its new name.")
@store_option
def give_name(sweep: str, name: str, store: str | None) -> None:
    """Give a sweep another name."""
    rename(existing_store(store, writes=True), sweep, name, make_console())
