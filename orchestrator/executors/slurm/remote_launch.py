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
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.executors.base import ExecutorRequest, LaunchJob, LaunchOptions
from depthrate.orchestrator.executors.slurm.job import go_back_into_queue
from depthrate.orchestrator.executors.slurm.submissions import Submission, is_alive, jobs_folder, jobs_of_sweep
from depthrate.slurm import in_job
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import begun_marker
from depthrate.slurm.submit import UnclearSubmissionError, submit_array

log = logging.getLogger("depthrate")
LONGEST_MIN = 7 * 24 * 60
"""Of one start; near its end the job queues again."""
MEM_GB = 2.0
MOST_ELSEWHERE = 10
"""Nodes on which the job may end before it begins, each of which it avoids from then on."""
BAD_INPUT = 2
"""How a launch ends that was refused: also where the controller did not answer."""
AGAIN_AFTER_S = (20.0, 60.0, 180.0, 600.0)
"""Before a launch that ended so, or was killed, begins anew."""


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
        if (packs_per_gpu := self._request.options.get("packs_per_gpu")) is not None:
            words += ["--packs-per-gpu", str(packs_per_gpu)]
        submission = Submission(name, sweep.name, self._limits.cluster, str(folder), [[]])
        submission.write(store)
        try:
            own = self._own_profile()
            elsewhere = min(MOST_ELSEWHERE, self._limits.partition_of(own).nodes - 1)
            arguments = [str(folder), options.data, *words]
            submission.job_ids = submit_array(own, name, folder, run_supervisor, [arguments], elsewhere=elsewhere)
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
            self._profile,
            partition=where,
            exclusive=False,
            gpus=0,
            gpu_type=None,
            packs_per_gpu=1,
            gres=None,
            signal_s=None,
        )
        asked = replace(asked, cpus=1, mem_gb=MEM_GB, mem_per_cpu_gb=None, nodes=1)
        if asked.container is not None:  # in there it would have no sbatch
            asked = replace(asked, container=None, python=None)
        longest = self._limits.partition_of(asked).max_min
        return replace(asked, walltime_min=int(min(LONGEST_MIN, longest or LONGEST_MIN)))


def run_supervisor(arguments: list[str]) -> None:
    """Run `depthrate run` inside the job: `arguments` are the job's folder, the data folder and its words."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder, data, *words = arguments
    begun_marker(Path(folder), os.environ["SLURM_JOB_ID"], in_job.restarts()).touch()
    os.environ["DEPTHRATE_DATA"] = data
    _Launch(words).run()


class _Launch:
    """`depthrate run` inside the job; it queues again when time is up."""

    def __init__(self, words: Sequence[str]):
        self._words = words
        self._asked: signal.Signals | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # SLURM sends its warning to every process: what is started from here on must not die of it
        for number in (signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Wait for its end; begin anew where the cluster was not to be reached, or it was killed."""
        for pause_s in (*AGAIN_AFTER_S, None):
            code = self._run_once()
            log.info("depthrate run ended with code %d in job %s", code, in_job.job_id())
            if self._asked is not None or pause_s is None or not (code == BAD_INPUT or code < 0):
                break
            log.info("it begins anew in %.0f s", pause_s)
            self._pause(pause_s)
        if self._asked is not None and code != 0:
            go_back_into_queue(self._asked, "the launch goes on", has_progressed=True)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < until:
            time.sleep(0.5)  # a signal ends no sleep

    def _run_once(self) -> int:
        if self._asked is not None:
            return BAD_INPUT
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a handler would not be inherited
        self._process = subprocess.Popen([sys.executable, "-m", "depthrate", *self._words], stdin=subprocess.DEVNULL)
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        return self._process.wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None and self._process is not None:
            self._asked = signal.Signals(number)
            self._process.send_signal(signal.SIGTERM)  # it leaves, and the jobs go on
