"""A launch on a SLURM cluster that goes on without a login node: one small job that drives the others to their end.

It is left where there is no room to submit everything at once: it submits the rest as room comes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from types import FrameType

from depthrate.orchestrator.attempt import new_attempt_id
from depthrate.orchestrator.executors.executor import ExecutorRequest, LaunchJob, LaunchOptions
from depthrate.orchestrator.executors.slurm_job import go_back_into_queue
from depthrate.orchestrator.executors.slurm_submissions import Submission, is_alive, jobs_folder, jobs_of_sweep
from depthrate.slurm import in_job
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.submit import UnclearSubmissionError, submit_array

log = logging.getLogger("depthrate")
LONGEST_MIN = 7 * 24 * 60
"""Of one start; near its end the job queues again."""
MEM_GB = 2.0


class Supervisor:
    """Sends a launch away as a job of one CPU."""

    def __init__(self, request: ExecutorRequest, cluster_file: str | None, profile: Profile, limits: Limits):
        self._request, self._cluster_file = request, cluster_file
        self._profile, self._limits = profile, limits

    def send(self, options: LaunchOptions) -> LaunchJob:
        """Return the job that drives this sweep already, or submit one.

        Raises:
            SlurmError: sbatch refused, or the controller does not answer.
        """
        submission = self._underway() or self._submit(options)
        return LaunchJob(submission.job_ids[0], submission.folder)

    def _underway(self) -> Submission | None:
        submissions, states = jobs_of_sweep(self._request.store, self._request.sweep.name, self._limits.cluster)
        launches = [each for each in submissions if each.is_launch]
        return next((each for each in launches if any(is_alive(states.get(job)) for job in each.job_ids)), None)

    def _submit(self, options: LaunchOptions) -> Submission:
        store, sweep = self._request.store, self._request.sweep
        name = f"depthrate-{sweep.name}-{new_attempt_id()}"
        folder = jobs_folder(self._profile, store, sweep.name) / name
        folder.mkdir(parents=True, exist_ok=True)
        spec = folder / "sweep.yaml"  # the sweep and the cluster file as they are now, whatever becomes of them
        spec.write_text(json.dumps(sweep.spec(), indent=1))
        words = ["run", str(spec), "--store", store.root if store.is_local else store.url, "--executor", "slurm"]
        words += ["--device", self._request.device, "--checkpoint-seconds", str(options.checkpoint_s)]
        words += [] if options.stall_s is None else ["--stall-minutes", str(options.stall_s / 60)]
        words += [] if options.code_hash is None else ["--code", options.code_hash]  # the task as it is now, as well
        if self._cluster_file is not None:
            words += ["--cluster", str(shutil.copy(self._cluster_file, folder / "cluster.toml"))]
        if self._request.workers is not None:
            words += ["--workers", str(self._request.workers)]
        submission = Submission(name, sweep.name, self._limits.cluster, str(folder), [[]])
        submission.write(store)
        try:
            submission.job_ids = submit_array(
                self._own_profile(), name, folder, run_supervisor, [[options.data, *words]]
            )
        except UnclearSubmissionError:
            raise
        except SlurmError:
            submission.delete(store)
            raise
        submission.write(store)
        return submission

    def _own_profile(self) -> Profile:
        """Return what the job itself asks for: where the others run unless the cluster file says otherwise."""
        where = self._profile.supervisor_partition or self._profile.partition
        asked = replace(
            self._profile, partition=where, exclusive=False, gpus=0, gpu_type=None, gres=None, signal_s=None
        )
        asked = replace(asked, cpus=1, mem_gb=MEM_GB, mem_per_cpu_gb=None, nodes=1)
        longest = self._limits.partition_of(asked).max_min
        return replace(asked, walltime_min=int(min(LONGEST_MIN, longest or LONGEST_MIN)))


def run_supervisor(arguments: list[str]) -> None:
    """Run `depthrate run` inside the job: `arguments` are the data folder and its words; queue again when time is up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    data, *words = arguments
    os.environ["DEPTHRATE_DATA"] = data
    asked: list[signal.Signals] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not asked:
            asked.append(signal.Signals(number))
            process.send_signal(signal.SIGTERM)  # it leaves, and the jobs go on

    # SLURM sends its warning to every process: what is started from here on must not die of it
    for number in (signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    process = subprocess.Popen([sys.executable, "-m", "depthrate", *words], stdin=subprocess.DEVNULL)
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, on_signal)
    code = process.wait()
    log.info("depthrate run ended with code %d in job %s", code, in_job.job_id())
    if asked and code != 0:
        go_back_into_queue(asked[0], "the launch goes on", has_progressed=True)
