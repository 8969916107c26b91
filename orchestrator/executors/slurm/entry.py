"""Declaration of the executor `slurm`: its options, its `open` function, and access to jobs without a launch."""

from __future__ import annotations

import functools
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from depthrate.orchestrator.attempts.options import Option
from depthrate.orchestrator.executors.base import (
    CancelledJobs,
    Executor,
    ExecutorEntry,
    ExecutorRequest,
    JobCounts,
    Scheduler,
    SchedulerAnswer,
)
from depthrate.orchestrator.executors.errors import ExecutorError

if TYPE_CHECKING:
    from depthrate.slurm.profile import Profile
    from depthrate.storage.files.store import Store

CLUSTER = Option(
    name="cluster", kind="str", doc="Cluster file (TOML) with the resources per SLURM job, e.g. slurm/example.toml."
)
PACKS_PER_GPU = Option(
    name="packs_per_gpu", kind="int", doc="Packs per GPU (ray, slurm). Default: the cluster file's, else 1.", minimum=1
)


def _resolve_profile(request: ExecutorRequest, profile: Profile) -> tuple[Profile, str]:
    """Return the resources of each job with the launch's options, and the device of the packs.

    Raises:
        ValueError: `SlurmError`, `MachineError` or `ExecutorError` if the file or an option cannot be used.
    """
    from depthrate.orchestrator.executors.machine import check_request
    from depthrate.orchestrator.executors.slurm.folders import check_jobs_folder
    from depthrate.slurm.command import run_command
    from depthrate.slurm.script import check_python

    options = request.options
    if hosts := ",".join(profile.exclude).replace(" ", ""):
        names = run_command(["scontrol", "show", "hostnames", hosts]).split() if "[" in hosts else hosts.split(",")
        profile = replace(profile, exclude=tuple(names))
    check_jobs_folder(profile, request.store, request.sweep.name)
    check_python(profile)
    keys = os.path.expanduser(profile.credentials or "")
    if keys and not (os.path.isfile(keys) and os.access(keys, os.R_OK)):
        raise ExecutorError(
            f"credentials is {profile.credentials!r}, expected a file that this user can read. Set its path on all nodes."
        )
    # `squeue --Format=JobID,State,Comment` lists the jobs of a sweep, also for other tools. Some sites prescribe comments
    profile = replace(profile, extra={"comment": f"depthrate:{request.sweep.name}", **profile.extra})
    check_request(options.device, options.workers)
    if (packs_per_gpu := options.executor_options[PACKS_PER_GPU.name]) is not None:
        profile = replace(profile, packs_per_gpu=packs_per_gpu)
    if options.workers is not None:
        profile = replace(profile, array_parallelism=options.workers)
    if options.device == "cuda" and not profile.gpus:
        raise ExecutorError("device is cuda, but the cluster file requests no GPU. Set gpus = 1 in it.")
    if profile.packs_per_gpu > 1 and not profile.gpus:
        raise ExecutorError(
            f"packs_per_gpu is {profile.packs_per_gpu}, but jobs request no GPU. Set gpus = 1 in the cluster file."
        )
    if profile.container is not None:
        profile = _with_container(profile, request.store)
    return profile, "cuda" if profile.gpus and options.device != "cpu" else "cpu"


def _with_container(profile: Profile, store: Store) -> Profile:
    """Return the profile with bind mounts of the store, the data sets and the jobs' folder in its containers."""
    from depthrate.orchestrator.executors.slurm.submissions import jobs_folder
    from depthrate.storage.files.data_folder import open_data_folder

    image = str(profile.container)
    if (image.startswith(("/", "~", ".")) or image.endswith((".sif", ".sqsh"))) and "://" not in image:
        if not (path := Path(image).expanduser().resolve()).exists():
            raise ExecutorError(
                f"container is {image!r}, which does not exist. Set the path of an image that all nodes see."
            )
        image = str(path)
    data = open_data_folder().store
    # A missing folder cannot be bound. The store and the jobs' folder exist once a job starts. The data folder may not exist.
    needed = [store.root] if store.local_folder else []
    needed += [data.root] if data.local_folder and data.local_folder.is_dir() else []
    needed.append(str(jobs_folder(profile, store, "x").parent))
    paths = dict.fromkeys(needed)
    outermost = [path for path in paths if not any(Path(path).is_relative_to(o) for o in paths if o != path)]
    return replace(profile, container=image, container_binds=(*profile.container_binds, *outermost))


def _open(request: ExecutorRequest) -> Executor:
    """Return the executor for the cluster, with the live jobs of earlier launches."""
    from depthrate.slurm.profile import load_profile

    requested = load_profile(request.options.executor_options[CLUSTER.name])  # refused before SLURM is queried
    from depthrate.orchestrator.executors.slurm.executor import SlurmExecutor
    from depthrate.orchestrator.executors.slurm.submissions import jobs_of_sweep
    from depthrate.slurm.cluster_limits import JobGroup, SubmitLimits, read_limits, read_submit_limits
    from depthrate.slurm.script import import_submitit

    limits = read_limits()
    import_submitit()  # before writing or submitting anything
    profile, device = _resolve_profile(request, requested)
    limits.check(profile, 0)
    partitions = limits.partitions_of(profile)  # of several, only a refusal shows which one's limits apply
    if profile.max_submitted is None:
        submit_limits = read_submit_limits(profile, limits.cluster, partitions[0] if len(partitions) == 1 else None)
    else:
        submit_limits = SubmitLimits({JobGroup(): profile.max_submitted})
    executor = SlurmExecutor(profile, limits, request.store, request.sweep.name, device, submit_limits=submit_limits)
    executor.adopt(*jobs_of_sweep(request.store, request.sweep.name, limits.cluster))
    return executor


@functools.cache  # constant, and each query costs the controller several commands
def _cluster_name() -> str:
    from depthrate.slurm.cluster_limits import read_limits

    return read_limits().cluster


def _poll(store: Store, sweep: str) -> SchedulerAnswer | None:
    """Query the controller once about a sweep's jobs, and the accounting about jobs that it has forgotten."""
    from depthrate.orchestrator.executors.slurm.submissions import jobs_of_sweep, read_submissions

    if not (all_submissions := read_submissions(store, [sweep])):
        return None
    from depthrate.orchestrator.executors.slurm.outcomes import list_unreported_ends
    from depthrate.orchestrator.executors.slurm.watched_jobs import accounted_states
    from depthrate.slurm.errors import SlurmError
    from depthrate.slurm.job_states import wait_text

    try:
        submissions, states = jobs_of_sweep(store, sweep, _cluster_name())
    except SlurmError:
        return SchedulerAnswer(None, [])
    job_ids = {job_id for submission in submissions for job_id in submission.job_ids}
    queued = [states[job_id] for job_id in job_ids if job_id in states]
    waiting = [state.reason for state in queued if state.phase == "waiting"]
    running = sum(state.phase == "running" for state in queued)
    reasons = dict(Counter(waiting).most_common())
    advice = [text for reason in reasons if (text := wait_text(reason)) != reason]
    is_known = bool(queued) or len(submissions) == len(all_submissions)  # the others belong to another cluster
    counts = JobCounts(len(waiting), running, reasons, advice) if is_known else None
    states |= accounted_states([job_id for job_id in job_ids if job_id not in states])
    return SchedulerAnswer(counts, list_unreported_ends(store, sweep, submissions, states))


def _cancel_jobs(store: Store, sweep: str) -> CancelledJobs | None:
    """Cancel all jobs of a sweep on the cluster that this machine belongs to."""
    from depthrate.orchestrator.executors.slurm.submissions import is_alive, jobs_of_sweep, read_submissions

    all_submissions = read_submissions(store, [sweep])
    if not all_submissions:
        return None
    from depthrate.slurm.cluster_limits import read_limits
    from depthrate.slurm.submit import cancel_jobs

    cluster = read_limits().cluster
    submissions, states = jobs_of_sweep(store, sweep, cluster)
    alive = [job_id for submission in submissions for job_id, _ in submission.jobs() if is_alive(states.get(job_id))]
    cancel_jobs(alive)
    clusters = dict.fromkeys(submission.cluster for submission in all_submissions)
    return CancelledJobs(len(alive), [name for name in clusters if name != cluster])


SLURM = ExecutorEntry(
    name="slurm",
    open=_open,
    options=(CLUSTER, PACKS_PER_GPU),
    scheduler=Scheduler("SLURM", _poll, _cancel_jobs),
)
