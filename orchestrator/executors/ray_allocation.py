"""`--executor ray --cluster FILE`: one SLURM job over several nodes, with a Ray cluster and the launch inside it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.attempt import new_attempt_id
from depthrate.orchestrator.executors.executor import Executor
from depthrate.orchestrator.executors.machine import USABLE_SHARE
from depthrate.orchestrator.executors.place import Estimate
from depthrate.orchestrator.executors.ray_node import RAY_ITSELF_GB, run_ray_node
from depthrate.orchestrator.executors.slurm_executor import UNKNOWN_S, is_alive, jobs_folder, printed_by
from depthrate.orchestrator.executors.submissions import Submission, jobs_of_sweep
from depthrate.orchestrator.plan import Plan
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.states import JobState, sacct_states, squeue_states
from depthrate.slurm.submit import batch_script, submit_array
from depthrate.storage.store import Store
from depthrate.sweeps.sweep import Sweep

LOOK_EVERY_S = 3.0


@dataclass
class AllocationPlace:
    """The nodes of one SLURM job, on which a Ray cluster lives as long as the job."""

    profile: Profile
    limits: Limits
    device: str
    packs_per_gpu: int
    sweep: Sweep
    store: Store
    submitted: Mapping[str, tuple[str, list[str]]]

    @property
    def slots(self) -> int:
        """Packs that run at once on a node."""
        return self.profile.gpus * self.packs_per_gpu if self.device == "cuda" else self.profile.cpus

    @property
    def workers(self) -> int:
        """Packs that run at once."""
        return self.profile.nodes * self.slots

    @property
    def memory_bytes(self) -> float | None:
        """Memory of one pack."""
        left_gb = max(0.1, self.profile.mem_gb - RAY_ITSELF_GB)
        return None if self.device == "cuda" else USABLE_SHARE * left_gb * 2**30 / self.slots

    def executor(self, plan: Plan) -> Executor:
        """Refuse: its packs are run by the launch inside the allocation."""
        raise NotImplementedError("an allocation runs a launch of its own")

    def check(self, plan: Plan, estimate_s: Estimate) -> None:
        """Refuse what exceeds a limit of the cluster.

        Raises:
            SlurmError: naming the limit.
        """
        self.limits.check(self.profile, 1, self.profile.nodes)

    def sentence(self) -> str:
        """Say which cluster and what the job asks for."""
        profile, partition = self.profile, self.limits.partition_of(self.profile)
        asked = f"{profile.gpus} GPUs, " if profile.gpus else ""
        asked += f"{profile.cpus} CPUs, {profile.mem_gb:g} GB each, {profile.walltime_min} min"
        nodes = f"{profile.nodes} nodes" if profile.nodes > 1 else "1 node"
        where = f"SLURM cluster {self.limits.cluster}, partition {partition.name}"
        return f"Ray in one job of {nodes} of {where}: {asked}; {self.workers} packs at once on {self.device}"

    def details(self, plan: Plan, estimate_s: Estimate) -> dict[str, Any]:
        """Return the batch script."""
        folder = jobs_folder(self.profile, self.store, self.sweep.name)
        name = f"depthrate-{self.sweep.name}"
        return {"batch_script": batch_script(self.profile, name, 1, folder, nodes=self.profile.nodes)}

    def running(self) -> Submission | None:
        """Return the allocation in which a launch of this sweep waits or runs already; forget those that are over.

        Raises:
            SlurmError: the controller does not answer.
        """
        submissions, states = jobs_of_sweep(self.store, self.sweep.name, self.limits.cluster)
        found = None
        for each in submissions:
            if any(each.packs):
                continue
            if any(is_alive(states.get(job_id)) for job_id in each.job_ids):
                found = each
            elif each.job_ids:
                each.delete(self.store)
        return found

    def submit(self, words: list[str], data: str) -> Submission:
        """Submit the job; `words` follow `depthrate run SWEEP` inside it.

        Raises:
            SlurmError: sbatch refused.
        """
        name = f"depthrate-{self.sweep.name}-{new_attempt_id()}"
        folder = jobs_folder(self.profile, self.store, self.sweep.name) / name
        folder.mkdir(parents=True, exist_ok=True)
        spec = folder / "sweep.yaml"  # the sweep as it is now, whatever becomes of its file
        spec.write_text(json.dumps(self.sweep.spec(), indent=1))
        store = self.store.root if self.store.is_local else self.store.url
        arguments = [
            str(folder),
            store,
            data,
            self.sweep.name,
            "run",
            str(spec),
            "--store",
            store,
            "--executor",
            "ray",
            *words,
        ]
        submission = Submission(name, self.sweep.name, self.limits.cluster, str(folder), [[]])
        submission.write(self.store)
        try:
            submission.job_ids = submit_array(
                self.profile, name, folder, run_ray_node, [arguments], nodes=self.profile.nodes
            )
        except SlurmError:
            submission.delete(self.store)
            raise
        submission.write(self.store)
        return submission

    def follow(self, submission: Submission, show: Callable[[JobState], None]) -> tuple[JobState, str]:
        """Wait for the job's end and return (its last state, the end of what it printed)."""
        (job_id,) = submission.job_ids
        state, unknown_since = JobState("PENDING"), None
        while state.phase != "over":
            show(state)
            time.sleep(LOOK_EVERY_S)
            try:
                found = squeue_states([job_id]).get(job_id)
            except SlurmError:  # the controller is away, which says nothing about the job
                continue
            found = found or _accounted_state(job_id)
            unknown_since = None if found else unknown_since or time.monotonic()
            if unknown_since is not None and time.monotonic() - unknown_since > UNKNOWN_S:
                break
            state = found or state
        submission.delete(self.store)
        return state, printed_by(submission, job_id)

    def remove_folder(self, submission: Submission) -> None:
        """Remove what the job was made of and printed."""
        shutil.rmtree(submission.folder, ignore_errors=True)


def _accounted_state(job_id: str) -> JobState | None:
    try:
        found = sacct_states([job_id]).get(job_id)
    except SlurmError:
        return None
    # what the accounting still calls alive, the controller knows better: it has forgotten it
    return found if found is not None and found.phase == "over" else None
