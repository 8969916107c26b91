"""`depthrate cancel`: a mark in the store that every launch of the sweep sees, and the end of its jobs."""

from __future__ import annotations

from rich.console import Console

from depthrate.orchestrator.cancel_mark import write_cancel_mark
from depthrate.orchestrator.executors.builtin import schedulers
from depthrate.orchestrator.usage import UsageError
from depthrate.storage.specs import newest_specs
from depthrate.storage.store import Store


def cancel_launched(store: Store, sweep: str, console: Console) -> None:
    """Cancel a sweep that was launched.

    Raises:
        UsageError: no such sweep was launched.
        ValueError: see `cancel_sweep`.
    """
    launched = newest_specs(store)
    if sweep not in launched:
        there_is = ", ".join(sorted(launched)) or "none"
        raise UsageError(f"no sweep {sweep!r} was launched in {store.url}; there is: {there_is}")
    cancel_sweep(store, sweep, console)


def cancel_sweep(store: Store, sweep: str, console: Console) -> None:
    """Ask all launches of a sweep that run now to stop, and cancel the jobs that it has with a scheduler.

    Raises:
        ValueError: there are such jobs and the scheduler does not answer.
    """
    write_cancel_mark(store, sweep)
    for scheduler in schedulers().values():
        cancelled = scheduler.cancel_jobs(store, sweep)
        if cancelled is None:
            continue
        for other in cancelled.elsewhere:
            console.print(f"jobs on cluster {other} are not touched: call this there", highlight=False)
        if cancelled.count:
            text = f"{cancelled.count} jobs of {sweep} are cancelled; running ones save their state first"
            console.print(text, highlight=False)
    console.print(f"launches of {sweep} stop within seconds; go on later with depthrate run", highlight=False)
