"""Report what happens to a launch's jobs: why they wait, restarts, time limits, and ends whose records are not visible yet."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress

from depthrate.orchestrator.attempts.events import log_event
from depthrate.orchestrator.executors.slurm.job import REQUEUE_MESSAGE
from depthrate.orchestrator.executors.slurm.watched_jobs import JobQueue, WatchedJob
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import JobState, earlier_starts, wait_text
from depthrate.slurm.profile import Profile
from depthrate.storage.files.store import Store

PROBABLE_CAUSES = {"OUT_OF_MEMORY": "mem_gb was too small", "OutOfMemory": "mem_gb was too small"}
PROBABLE_CAUSES |= dict.fromkeys(("TIMEOUT", "TimeLimit"), "walltime_min was too short")
"""State, or reason of an ending job -> probable cause, reported before the job's records are known."""
RESTARTS = {"PREEMPTED": "preempted, requeued", "NODE_FAIL": "lost with their node, requeued"}
"""Final state of a job's earlier start -> description of its restart. Other states reveal no cause."""
ORDINARY_REASONS = ("Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime")
"""Reasons why jobs wait that require no action."""


def log_job_states(queue: JobQueue, profile: Profile) -> None:
    """Log unusual reasons why jobs wait, overdue and ending jobs, and ended jobs whose records are not visible yet."""
    jobs = queue.jobs.values()
    for reason, count in queue.waiting_reasons().items():
        if reason not in ORDINARY_REASONS:
            log_event("job", f"waiting: {wait_text(reason)}", count=count, is_state=True)
    if suspended := [job.state.node for job in jobs if job.state.state == "SUSPENDED"]:
        nodes = ", ".join(sorted(set(suspended)))
        log_event("job", "suspended until SLURM resumes them", count=len(suspended), where=nodes, is_state=True)
    # Another launch may have submitted adopted jobs with another cluster file.
    overdue = [
        job
        for job in queue.overdue(60 * profile.walltime_min)
        if queue.adopted.keys().isdisjoint(pack.attempt_id for pack in job.packs)
    ]
    limit = f"over the time limit of {profile.walltime_min} min and about to be killed"
    _log_per_node(f"{limit}. Increase walltime_min, or save checkpoints in the task", [job.state for job in overdue])
    overdue_ids = {job.job_id for job in overdue}
    ending = [job.state for job in jobs if job.state.state == "COMPLETING" and job.job_id not in overdue_ids]
    for reason, cause in PROBABLE_CAUSES.items():
        _log_per_node(f"ending: {reason} (probably {cause})", [state for state in ending if state.reason == reason])
    ended = [job.state for job in jobs if queue.is_over(job) and job.packs]
    for name in dict.fromkeys(state.state for state in ended):
        cause = f" (probably {PROBABLE_CAUSES[name]})" if name in PROBABLE_CAUSES else ""
        message = f"ended as {name}{cause}, waiting up to {profile.grace_s:.0f} s for its records"
        _log_per_node(message, [state for state in ended if state.state == name])


def _log_per_node(message: str, states: Collection[JobState]) -> None:
    for node, count in Counter(state.node for state in states).items():
        log_event("job", message, count=count, where=node, is_state=True)


def log_restarts(store: Store, restarted: Sequence[tuple[WatchedJob, str]]) -> None:
    """Log the (job, node) pairs that SLURM has requeued, with the cause if the accounting or the job's log has it."""
    if not restarted:
        return
    starts: dict[str, list[JobState]] = {}
    checkpointed: set[str] = set()
    with suppress(SlurmError):
        starts = earlier_starts(job.job_id for job, _ in restarted)
    with suppress(OSError):
        checkpointed = {path.split("/")[1] for path in store.list("checkpoints")}
    for job, node in restarted:
        of_job, restarts = starts.get(job.job_id, []), job.state.restarts or 1
        state = of_job[restarts - 1].state if len(of_job) >= restarts else ""  # the accounting lags
        how, own = RESTARTS.get(state, "requeued for an unknown cause"), REQUEUE_MESSAGE.format(r"(\w+)", restarts)
        if state not in RESTARTS and (signals := re.findall(rf"{own}\b", job.submission.read_stderr(job.job_id))):
            how = f"requeued by themselves after {signals[-1]}"
        resumes = not checkpointed.isdisjoint(pack.pack_id for pack in job.packs)
        log_event("job", how + (" and resuming from their checkpoints" if resumes else ""), where=node)
