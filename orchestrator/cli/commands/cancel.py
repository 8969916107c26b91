"""`depthrate cancel`: stop a sweep wherever it runs: what runs saves its state, what waits is taken out of the queue."""

from __future__ import annotations

import time

import click
from rich.console import Console

from depthrate.orchestrator.attempts.cancellation import write_cancel_mark
from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.record import describe_attempt
from depthrate.orchestrator.cli.options import declared, launched_argument, store_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted, make_console
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.storage.attempts.clocks import compare_clocks
from depthrate.storage.attempts.records import Record, read_loose_records
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store, existing_store

MAX_PACKS_SHOWN = 5
"""Machines that are named."""


def cancel_launched(store: Store, sweep: str, console: Console, *, force: bool = False) -> None:
    """Cancel a sweep that was launched; with `force` what runs is ended without its state being saved.

    Raises:
        UsageError: no such sweep was launched.
        ValueError: see `cancel_sweep`.
    """
    launched = newest_specs(store)
    if sweep not in launched:
        there_is = ", ".join(sorted(launched)) or "none"
        raise UsageError(f"no sweep {sweep!r} was launched in {store.url}; there is: {there_is}")
    cancel_sweep(store, sweep, console, force=force)


def cancel_sweep(store: Store, sweep: str, console: Console, *, force: bool = False) -> None:
    """Ask all launches of a sweep that run now to stop, and cancel the jobs that it has with a scheduler.

    Raises:
        ValueError: there are such jobs and the scheduler does not answer.
    """
    compare_clocks(store)  # else an attempt that lives may be taken for a dead one, which --force would spare
    live = _live_attempts(store, sweep)
    write_cancel_mark(store, sweep, [record["attempt_id"] for record in live] if force else ())
    if live:
        how = "ends itself within seconds" if force else "is asked to stop; if it hangs: --force"
        hosts = sorted({record["host"] for record in live})
        on = ", ".join(hosts[:MAX_PACKS_SHOWN]) + (
            f" and {len(hosts) - MAX_PACKS_SHOWN} more" if len(hosts) > MAX_PACKS_SHOWN else ""
        )
        what = describe_attempt(live[0]) if len(live) == 1 else f"each of {len(live)} running attempts on {on}"
        console.print(f"{what}: {how}")
    for scheduler in schedulers().values():
        cancelled = scheduler.cancel_jobs(store, sweep)
        if cancelled is None:
            continue
        if cancelled.elsewhere:
            others = ", ".join(cancelled.elsewhere)
            console.print(f"jobs on {others} are not touched: call this there")
        if cancelled.count:
            text = f"{counted(cancelled.count, 'job')} of {sweep} cancelled; what runs saves its state first"
            console.print(text)
    console.print(f"launches of {sweep} stop within seconds; go on later with depthrate run")


def _live_attempts(store: Store, sweep: str) -> list[Record]:
    """Return the attempts of a sweep that run now."""
    paths = [path for path in store.list("attempts") if sweep_of_path(path) == sweep and path.endswith(".json")]
    now = time.time()
    return [record for _, record in read_loose_records(store, paths) if is_live(record, now)]


@declared(__doc__)
@launched_argument
@store_option
@click.option("--force", is_flag=True, help="End what runs at once, without saving its state: for a task that hangs.")
def command(sweep: str, store: str | None, force: bool) -> None:
    cancel_launched(existing_store(store, writes=True), sweep, make_console(), force=force)
