"""`depthrate cancel`: cancel a sweep: checkpoint running trials, dequeue the rest."""

import time

import click
from rich.console import Console

from depthrate.orchestrator.attempts.cancellation import write_cancel_mark
from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.record import describe_attempt
from depthrate.orchestrator.cli.options import declared, launched_argument, store_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted, listed, make_console
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.storage.attempts.clocks import compare_clocks
from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.catalog.specs import find_launched, newest_specs
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store, existing_store

MAX_NODES_SHOWN = 5
"""Maximum number of nodes listed."""


def cancel_sweep(store: Store, sweep: str, console: Console, *, force: bool = False) -> None:
    """Ask all running launches of a sweep to stop, and cancel its jobs.

    Raises:
        ValueError: The sweep has jobs and the scheduler does not answer.
    """
    compare_clocks(store)  # with a wrong clock, --force could miss live attempts
    paths = [path for path in store.list("attempts") if sweep_of_path(path) == sweep and path.endswith(".json")]
    now = time.time()
    live = [record for _, record in read_loose_records(store, paths) if is_live(record, now)]
    write_cancel_mark(store, sweep, [record["attempt_id"] for record in live] if force else ())
    if live:
        how = "ends within seconds" if force else "will stop after a checkpoint. If it hangs: --force"
        hosts = sorted({record["host"] for record in live})
        running = f"{len(live)} running attempts on {listed(hosts, MAX_NODES_SHOWN)}"
        attempts = describe_attempt(live[0]) if len(live) == 1 else running
        console.print(f"{attempts}: {how}")
    for scheduler in schedulers().values():
        cancelled = scheduler.cancel_jobs(store, sweep)
        if cancelled is None:
            continue
        if cancelled.elsewhere:
            clusters = ", ".join(cancelled.elsewhere)
            console.print(f"jobs on {clusters} are not cancelled. Run this command there.")
        if cancelled.count:
            console.print(
                f"{counted(cancelled.count, 'job')} of {sweep} cancelled. Running packs save a checkpoint first."
            )
    console.print(f"launches of {sweep} stop within seconds. Resume with depthrate run.")


@declared(__doc__)
@launched_argument
@store_option
@click.option("--force", is_flag=True, help="End running attempts at once, without a checkpoint.")
def command(sweep: str, store: str | None, force: bool) -> None:
    opened = existing_store(store, writes=True)
    if (found := find_launched(opened, sweep)) is None:
        names = ", ".join(sorted(newest_specs(opened))) or "none"
        raise UsageError(f"no sweep {sweep!r} was launched in {opened.url}, which has: {names}")
    sweep = found[1].sweep  # a request to stop ends all launches of a sweep
    cancel_sweep(opened, sweep, make_console(), force=force)
