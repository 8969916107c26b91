"""`depthrate cancel`: a mark in the store that every launch of the sweep sees, and the end of its jobs."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from depthrate.orchestrator.cancel_mark import write_cancel_mark
from depthrate.orchestrator.executors.submissions import jobs_of_sweep, read_submissions
from depthrate.orchestrator.usage import UsageError
from depthrate.storage.specs import newest_specs
from depthrate.storage.store import Store


def cancel_launched(store: Store, sweep: str, console: Console) -> None:
    """Cancel a sweep that was launched.

    Raises:
        UsageError: no such sweep was launched.
        SlurmError: see `cancel_sweep`.
    """
    launched = newest_specs(store)
    if sweep not in launched:
        there_is = ", ".join(sorted(launched)) or "none"
        raise UsageError(f"no sweep {sweep!r} was launched in {store.url}; there is: {there_is}")
    cancel_sweep(store, sweep, console)


def cancel_sweep(store: Store, sweep: str, console: Console) -> None:
    """Ask all launches of a sweep that run now to stop, and cancel the jobs it has on a SLURM cluster.

    Raises:
        SlurmError: there are such jobs and the controller does not answer.
    """
    write_cancel_mark(store, sweep)
    cancelled = _cancel_jobs(store, sweep, console) if read_submissions(store, [sweep]) else 0
    if cancelled:
        console.print(
            f"{cancelled} jobs of {sweep} are cancelled; running ones save their state first", highlight=False
        )
    console.print(f"launches of {sweep} stop within seconds; go on later with depthrate run", highlight=False)


def _cancel_jobs(store: Store, sweep: str, console: Console) -> int:
    from depthrate.slurm.limits import read_limits
    from depthrate.slurm.submit import cancel_jobs

    cluster = read_limits().cluster
    submissions, states = jobs_of_sweep(store, sweep, cluster)
    elsewhere = Counter(each.cluster for each in read_submissions(store, [sweep]) if each.cluster != cluster)
    for other in elsewhere:
        console.print(f"jobs on cluster {other} are not touched: call this there", highlight=False)
    alive = [
        job_id
        for each in submissions
        for job_id, _ in each.jobs()
        if job_id in states and states[job_id].phase != "over"
    ]
    cancel_jobs(alive)
    return len(alive)
