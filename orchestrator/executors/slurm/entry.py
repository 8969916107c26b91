"""The executor `slurm`, as it is declared: its options, and what they open; and what becomes of jobs without a launch."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from depthrate.orchestrator.executors.base import (
    CancelledJobs,
    ComputeTarget,
    ExecutorEntry,
    ExecutorError,
    ExecutorRequest,
    JobCounts,
    Scheduler,
    SchedulerAnswer,
)
from depthrate.orchestrator.executors.options import Option

if TYPE_CHECKING:
    from depthrate.slurm.profile import Profile
    from depthrate.storage.files.store import Store

CLUSTER = Option("cluster", str, "A cluster file (TOML): what each SLURM job asks for; slurm/example.toml is one.")
PACKS_PER_GPU = Option(
    "packs_per_gpu",
    int,
    "With --executor ray or slurm: packs that share a GPU (default: 1, or the cluster file's).",
    minimum=1,
)


def resolve_profile(request: ExecutorRequest, cluster: str | None) -> tuple[Profile, str]:
    """Return what each job asks for, and the device that packs compute on.

    Raises:
        ValueError: `SlurmError`, `MachineError` or `ExecutorError` for a file or an option that does not fit.
    """
    from depthrate.orchestrator.executors.machine import MachineError
    from depthrate.slurm.profile import load_profile

    options, profile = request.options, load_profile(cluster)
    if (packs_per_gpu := options.executor_options[PACKS_PER_GPU.name]) is not None:
        profile = replace(profile, packs_per_gpu=packs_per_gpu)
    if options.workers is not None:
        if options.workers < 1:
            raise MachineError(f"workers is {options.workers}; give at least 1")
        profile = replace(profile, array_parallelism=options.workers)
    if options.device not in ("auto", "cpu", "cuda"):
        raise MachineError(f"device {options.device!r} is unknown; allowed: auto, cpu, cuda")
    if options.device == "cuda" and not profile.gpus:
        raise ExecutorError("device is cuda, but the cluster file asks for no GPU; set gpus = 1 in it")
    if profile.packs_per_gpu > 1 and not profile.gpus:
        raise ExecutorError(
            f"packs_per_gpu is {profile.packs_per_gpu}, but jobs ask for no GPU; set gpus = 1 in the cluster file"
        )
    if profile.container is not None:
        profile = _with_container(profile, request.store)
    return profile, "cuda" if profile.gpus and options.device != "cpu" else "cpu"


def _with_container(profile: Profile, store: Store) -> Profile:
    """Return the profile whose containers see the store, the data sets and the jobs' folder.

    Raises:
        ExecutorError: the image is not there.
    """
    from pathlib import Path

    from depthrate.orchestrator.executors.slurm.submissions import jobs_folder
    from depthrate.storage.files.data_folder import open_data_folder

    image = str(profile.container)
    if (image.startswith(("/", "~", ".")) or image.endswith((".sif", ".sqsh"))) and "://" not in image:
        if not (path := Path(image).expanduser().resolve()).exists():
            raise ExecutorError(f"container is {image!r}, which is not there; give an image that all nodes see")
        image = str(path)
    data = open_data_folder().store
    # those of ours are there when a job starts, and a place that is not there cannot be bound
    needed = [store.root] if store.is_local else []
    needed += [data.root] if data.is_local and Path(data.root).is_dir() else []
    needed.append(str(jobs_folder(profile, store, "x").parent))
    places = dict.fromkeys(needed)
    inside = [place for place in places if not any(Path(place).is_relative_to(o) for o in places if o != place)]
    return replace(profile, container=image, container_binds=(*profile.container_binds, *inside))


def _open(request: ExecutorRequest) -> ComputeTarget:
    """Return the cluster, and the jobs of earlier launches that it still has.

    Raises:
        ValueError: `SlurmError`, `MachineError` or `ExecutorError` for what is not there or does not fit.
    """
    from depthrate.orchestrator.executors.slurm.executor import SlurmExecutor
    from depthrate.orchestrator.executors.slurm.remote_launch import Supervisor
    from depthrate.orchestrator.executors.slurm.submissions import jobs_of_sweep
    from depthrate.slurm.cluster_limits import JobGroup, SubmitLimits, read_limits, read_submit_limits
    from depthrate.slurm.script import check_submitit

    check_submitit()  # before anything is written or submitted
    profile, device = resolve_profile(request, request.options.executor_options[CLUSTER.name])
    limits = read_limits()
    limits.check(profile, 0)
    if profile.max_submitted is None:
        submit_limits = read_submit_limits(profile, limits.cluster)
    else:
        submit_limits = SubmitLimits({JobGroup(): profile.max_submitted})
    supervisor = Supervisor(request, profile, limits) if profile.supervisor else None
    executor = SlurmExecutor(
        profile,
        limits,
        request.store,
        request.sweep.name,
        device,
        supervisor=supervisor,
        submit_limits=submit_limits,
    )
    executor.adopt(*jobs_of_sweep(request.store, request.sweep.name, limits.cluster))
    return executor


@functools.cache  # it does not change, and to ask costs the controller several commands
def _cluster_name() -> str:
    from depthrate.slurm.cluster_limits import read_limits

    return read_limits().cluster


def _poll(store: Store, sweep: str) -> SchedulerAnswer | None:
    """Ask the controller once about a sweep's jobs, and the accounting for those that it has forgotten."""
    from depthrate.orchestrator.executors.slurm.submissions import jobs_of_sweep, read_submissions

    if not read_submissions(store, [sweep]):
        return None
    from depthrate.orchestrator.executors.slurm.outcomes import list_unreported_ends
    from depthrate.orchestrator.executors.slurm.queue import accounted_states
    from depthrate.slurm.command import SlurmError

    try:
        submissions, states = jobs_of_sweep(store, sweep, _cluster_name())
    except SlurmError:
        return None
    ours = {job_id for each in submissions for job_id in each.job_ids}
    known = [states[job_id] for job_id in ours if job_id in states]
    waiting = [state.reason for state in known if state.phase == "waiting"]
    running = sum(state.phase == "running" for state in known)
    counts = JobCounts(len(waiting), running, dict(Counter(waiting).most_common()))
    states |= accounted_states([job_id for job_id in ours if job_id not in states])
    return SchedulerAnswer(counts, list_unreported_ends(store, sweep, submissions, states))


def _cancel_jobs(store: Store, sweep: str) -> CancelledJobs | None:
    """Cancel all jobs of a sweep on the cluster that can be reached from here.

    Raises:
        SlurmError: the controller does not answer.
    """
    from depthrate.orchestrator.executors.slurm.submissions import is_alive, jobs_of_sweep, read_submissions

    everywhere = read_submissions(store, [sweep])
    if not everywhere:
        return None
    from depthrate.slurm.cluster_limits import read_limits
    from depthrate.slurm.submit import cancel_jobs

    cluster = read_limits().cluster
    submissions, states = jobs_of_sweep(store, sweep, cluster)
    alive = [job_id for each in submissions for job_id, _ in each.jobs() if is_alive(states.get(job_id))]
    cancel_jobs(alive)
    return CancelledJobs(
        len(alive), list(dict.fromkeys(each.cluster for each in everywhere if each.cluster != cluster))
    )


SLURM = ExecutorEntry(
    name="slurm",
    open=_open,
    options=(CLUSTER, PACKS_PER_GPU),
    detach="slurm",
    scheduler=Scheduler("SLURM", _poll, _cancel_jobs),
)
