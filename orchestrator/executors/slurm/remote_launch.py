"""Remote launches on a SLURM cluster: a launch runs as one job, independent of the login node.

The supervisor is a small job that drives the other jobs. It is used if the queue has no space for all jobs, and submits the
remaining jobs as space becomes free. `ray/allocation.py` submits a launch together with the nodes that it runs on.
"""

import json
import logging
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.executors.base import ExecutorRequest, LaunchJob
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.executors.slurm.folders import write_trials
from depthrate.orchestrator.executors.slurm.job import requeue_job
from depthrate.orchestrator.executors.slurm.submissions import (
    JOB_NAME,
    Submission,
    is_alive,
    jobs_folder,
    jobs_of_sweep,
)
from depthrate.slurm import in_job
from depthrate.slurm.cluster_limits import Limits
from depthrate.slurm.command import SlurmError
from depthrate.slurm.profile import Profile
from depthrate.slurm.submit import UnclearSubmissionError, submit_array
from depthrate.tasks.python_process import start_python

log = logging.getLogger("depthrate")
OPTIONS_FILE = "launch.json"
"""File in the job's folder with the options of the inner launch."""
OUTER_ONLY_OPTIONS: dict[str, Any] = {
    **{"set_": (), "engine": None, "detach": False, "rerun": False, "keep_results": False},
    "notify": None,  # its value may be a URL with a secret key
}
"""Values to which the inner launch resets options that the outer launch has handled or that are part of the sweep file."""
MAX_WALLTIME_MIN = 7 * 24 * 60
"""Time limit of the supervisor in minutes. It requeues itself near the limit."""
SUPERVISOR_MEM_GB = 2.0
MAX_EXCLUDED_NODES = 10
"""Maximum number of nodes that the supervisor excludes, each after its job ended there before depthrate started."""
BAD_INPUT_CODE = 2
"""Exit code of a launch that was rejected or got no answer from the controller."""
RELAUNCH_DELAYS_S = (20.0, 60.0, 180.0, 600.0)
"""Delays before rerunning a launch that exited with this code or was killed, in seconds."""


class RemoteLaunch(ABC):
    """Submits a launch as one SLURM job, which reads its options from a file next to its sweep file."""

    def __init__(self, request: ExecutorRequest, profile: Profile, limits: Limits):
        self._request, self._profile, self._limits = request, profile, limits
        self._sweep, self._store = request.sweep, request.store

    @abstractmethod
    def _options_inside(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """Return the executor of the inner launch and its options. `folder` is the job's folder."""

    @abstractmethod
    def _submit_job(self, name: str, folder: Path) -> list[str]:
        """Submit the job, which receives its folder as argument, and return its job IDs."""

    def send_launch(self, options: LaunchOptions) -> LaunchJob:
        """Return the live job of an earlier remote launch of the sweep, or submit one.

        Raises:
            SlurmError: sbatch refused the job, or the controller does not answer.
        """
        submission = self._find_live() or self._submit(options)
        return LaunchJob(submission.job_ids[0], submission.folder)

    def _find_live(self) -> Submission | None:
        """Return the first live remote launch, if any, and delete finished launches."""
        submissions, states = jobs_of_sweep(self._store, self._sweep.name, self._limits.cluster)
        alive = None
        for submission in submissions:
            if not submission.is_launch:
                continue
            if any(is_alive(states.get(job_id)) for job_id in submission.job_ids):
                alive = alive or submission
            elif submission.job_ids:
                submission.delete(self._store)
                shutil.rmtree(submission.folder, ignore_errors=True)
        return alive

    def _submit(self, options: LaunchOptions) -> Submission:
        name = JOB_NAME.format(sweep=self._sweep.name, number=new_attempt_id())
        folder = jobs_folder(self._profile, self._store, self._sweep.name) / name
        write_trials(folder, [])
        # Copies of the sweep and the options, which later changes do not affect.
        spec = folder / "sweep.yaml"
        spec.write_text(json.dumps(self._sweep.spec(), indent=1))
        executor, executor_options = self._options_inside(folder)
        inner_options = replace(
            self._request.options,
            sweep=str(spec),
            store=self._store.address,
            executor=executor,
            executor_options=executor_options,
            code_version=options.code_version,
            data=options.data,
            **OUTER_ONLY_OPTIONS,
        )
        (folder / OPTIONS_FILE).write_text(inner_options.to_json())
        submission = Submission(name, self._sweep.name, self._limits.cluster, str(folder), [[]])
        submission.write(self._store)
        try:
            submission.job_ids = self._submit_job(name, folder)
        except UnclearSubmissionError:
            raise
        except SlurmError:
            submission.delete(self._store)
            raise
        submission.write(self._store)
        return submission


class Supervisor(RemoteLaunch):
    """Submits a launch to SLURM as a job with one CPU."""

    def _options_inside(self, folder: Path) -> tuple[str, dict[str, Any]]:
        options = dict(self._request.options.executor_options)
        if options.get("cluster") is not None:
            options["cluster"] = str(shutil.copy(options["cluster"], folder / "cluster.toml"))
        return "slurm", options

    def _submit_job(self, name: str, folder: Path) -> list[str]:
        profile = self._job_profile()
        elsewhere = min(MAX_EXCLUDED_NODES, max(0, self._limits.partition_of(profile).num_usable(profile) - 1))
        return submit_array(profile, name, folder, run_supervisor, [[str(folder)]], elsewhere=elsewhere)

    def _job_profile(self) -> Profile:
        """Return the resources of the supervisor. Its partition is the packs' partition, unless the cluster file has
        another."""
        profile = replace(
            self._profile,
            partition=self._profile.supervisor_partition or self._profile.partition,
            exclusive=False,
            gpus=0,
            gpu_type=None,
            packs_per_gpu=1,
            gres=None,
            signal_s=None,
        )
        profile = replace(profile, cpus=1, mem_gb=SUPERVISOR_MEM_GB, mem_per_cpu_gb=None, nodes=1)
        if profile.container is not None:  # a container has no sbatch
            profile = replace(profile, container=None, python=None)
        max_min = self._limits.partition_of(profile).max_min
        return replace(profile, walltime_min=int(min(MAX_WALLTIME_MIN, max_min or MAX_WALLTIME_MIN)))


def launch_process(file: Path) -> subprocess.Popen[bytes]:
    """Start `depthrate run` with the options in a file, including the data folder."""
    data = LaunchOptions.from_json(file.read_text()).data
    variables = {} if data is None else {"DEPTHRATE_DATA": data}
    module = "depthrate.orchestrator.cli.commands.run"
    return start_python(module, str(file), variables=variables, stdin=subprocess.DEVNULL)


def run_supervisor(arguments: list[str]) -> None:
    """Run `depthrate run` inside the job. The only argument is the job's folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    (folder,) = arguments
    in_job.mark_started()
    InnerLaunch(Path(folder) / OPTIONS_FILE).run()


class InnerLaunch:
    """Runs `depthrate run` inside the job and requeues the job near its time limit."""

    def __init__(self, file: Path):
        self._file = file
        self._stop_signal: signal.Signals | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # SLURM sends its warning to every process. Child processes inherit that they ignore it.
        for number in (signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Wait for the launch to exit. Rerun it if it was killed or the cluster did not answer."""
        for delay_s in (*RELAUNCH_DELAYS_S, None):
            code = self._run_once()
            log.info("depthrate run exited with code %d in job %s", code, in_job.job_id())
            if self._stop_signal is not None or delay_s is None or not (code == BAD_INPUT_CODE or code < 0):
                break
            log.info("rerunning it in %.0f s", delay_s)
            self._sleep(delay_s)
        if self._stop_signal is not None and code != 0:
            requeue_job(self._stop_signal, "the launch resumes", has_progressed=True)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._stop_signal is None and time.monotonic() < until:
            time.sleep(0.5)  # a signal does not interrupt sleep

    def _run_once(self) -> int:
        if self._stop_signal is not None:
            return BAD_INPUT_CODE
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # child processes inherit SIG_IGN but not a handler
        self._process = launch_process(self._file)
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        return self._process.wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_signal is None and self._process is not None:
            self._stop_signal = signal.Signals(number)
            self._process.send_signal(signal.SIGTERM)  # the launch detaches, and its jobs keep running
