"""`--executor ray --cluster FILE`: one SLURM job over several nodes that runs a Ray cluster and the launch."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import Estimate, ExecutorRequest, LaunchJob, RemoteLauncher
from depthrate.orchestrator.executors.machine import USABLE_SHARE
from depthrate.orchestrator.executors.ray.node import RAY_ITSELF_GB, run_ray_node
from depthrate.orchestrator.executors.slurm.entry import resolve_profile
from depthrate.orchestrator.executors.slurm.remote_launch import RemoteLaunch
from depthrate.orchestrator.executors.slurm.request_rate import EXTRA_POLLS_PER_MIN
from depthrate.orchestrator.executors.slurm.submissions import PLANNED_JOB_NAME, Submission, jobs_folder
from depthrate.orchestrator.executors.slurm.watched_jobs import JobQueue, WatchedJob
from depthrate.slurm.cluster_limits import Limits, read_limits
from depthrate.slurm.command import CALLS
from depthrate.slurm.job_states import wait_text
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import all_jobs_ended, batch_script
from depthrate.slurm.submit import submit_array
from depthrate.sweeps.packing import Pack

FOLLOW_INTERVAL_S = 3.0
"""Seconds between reads of the job's folder and of the store. The request budget limits the queries of the controller."""


class Allocation(RemoteLaunch, RemoteLauncher):
    """A remote launch on the nodes of one SLURM job, with a Ray cluster for the duration of the job."""

    def __init__(self, request: ExecutorRequest, profile: Profile, limits: Limits, device: str):
        super().__init__(request, profile, limits)
        slots = profile.gpus * profile.packs_per_gpu if device == "cuda" else profile.cpus
        self.device = device
        self.workers = profile.nodes * slots
        if device != "cuda" and profile.job_mem_gb is not None:
            available_gb = max(0.1, profile.job_mem_gb - RAY_ITSELF_GB)
            self.memory_bytes = USABLE_SHARE * available_gb * 2**30 / slots

    def check(self, packs: Sequence[Pack], estimate_s: Estimate) -> None:
        """Reject a job that exceeds a limit of the cluster.

        Raises:
            SlurmError: A limit is exceeded.
        """
        self._limits.check(self._profile, 1, self._profile.nodes)

    def summary(self) -> str:
        """Return a string with the cluster, the job's resources and its slots."""
        profile, partition = self._profile, self._limits.partition_of(self._profile)
        resources = f"{profile.resources_text()} each, {profile.walltime_min} min"
        nodes = counted(profile.nodes, "node")
        cluster = f"SLURM cluster {self._limits.cluster}, partition {partition.name}"
        slots = f"{counted(self.workers, 'parallel pack')} on {self.device}"
        return f"Ray in one job on {nodes} of {cluster}: {resources}; {slots}"

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return the batch script."""
        name = PLANNED_JOB_NAME.format(sweep=self._sweep.name)
        folder = jobs_folder(self._profile, self._store, self._sweep.name) / name
        return {"batch_script": batch_script(self._profile, name, 1, folder, nodes=self._profile.nodes)}

    def follow(self, job: LaunchJob, show: Callable[[str], None]) -> str:
        """Wait for the end of the job while passing its state to `show`, and return a description of the end."""
        queue = JobQueue(poll_s=self._profile.poll_s)
        for _ in range(min(EXTRA_POLLS_PER_MIN, CALLS["squeue"])):  # by `send_launch`
            queue.requests.record_count()
        submission = Submission(Path(job.folder).name, self._sweep.name, self._limits.cluster, job.folder, [[]])
        watched = queue.jobs[job.job_id] = WatchedJob(job.job_id, submission, [])
        while not queue.is_over(watched):
            reason = f" ({wait_text(watched.state.reason)})" if watched.is_waiting and watched.state.reason else ""
            show(watched.state.state.lower() + reason)
            time.sleep(FOLLOW_INTERVAL_S)
            queue.poll_if_due(is_news_due=all_jobs_ended(Path(job.folder)))
            queue.read_failed_starts()
        stderr = watched.failed_start or submission.read_stderr(job.job_id)
        submission.delete(self._store)
        tail = " / ".join(stderr.strip().splitlines()[-3:])
        node = f" on {watched.state.node}" if watched.state.node else ""
        return f"job {job.job_id} ended as {watched.state.state}{node}: {tail}. Logs: {job.folder}"

    def _options_inside(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """Return the executor and options of the inner launch. `run_ray_node` adds the address."""
        return "ray", {"packs_per_gpu": self._profile.packs_per_gpu}

    def _submit_job(self, name: str, folder: Path) -> list[str]:
        nodes = self._profile.nodes
        return submit_array(self._profile, name, folder, run_ray_node, [[str(folder)]], nodes=nodes)


def open_allocation(request: ExecutorRequest, cluster: str) -> Allocation:
    """Return the allocation that a cluster file requests.

    Raises:
        ValueError: `SlurmError`, `MachineError` or `ExecutorError` if the cluster, the file or an option cannot be used.
    """
    profile, device = resolve_profile(request, cluster)
    limits = read_limits()
    limits.check(profile, 1, profile.nodes)
    return Allocation(request, profile, limits, device)
