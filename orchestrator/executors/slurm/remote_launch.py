"""A launch on a SLURM cluster that goes on without a login node, inside a job of its own.

The supervisor is one small job that drives the others to their end. It is left where there is no room to submit everything
at once: it submits the rest as room comes. `ray/allocation.py` sends a launch away together with the nodes that it runs on.
"""

from __future__ import annotations

import json
import logging
import os
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
from depthrate.slurm.script import start_marker
from depthrate.slurm.submit import UnclearSubmissionError, submit_array
from depthrate.tasks.python_process import start_python

log = logging.getLogger("depthrate")
OPTIONS_FILE = "launch.json"
"""In a job's folder: the options of the launch that runs inside."""
SETTLED_HERE: dict[str, Any] = {
    **{"set_": (), "engine": None, "detach": False, "rerun": False, "keep_results": False},
    "notify": None,  # may be an address with a key in it
}
"""What the launch that sends another one away has done, or the sweep beside the options says."""
MAX_WALLTIME_MIN = 7 * 24 * 60
"""Of one start; near its end the job queues again."""
MEM_GB = 2.0
MAX_EXCLUDED_NODES = 10
"""Nodes on which the job may end before it begins, each of which it avoids from then on."""
BAD_INPUT = 2
"""How a launch ends that was refused: also where the controller did not answer."""
RELAUNCH_DELAYS_S = (20.0, 60.0, 180.0, 600.0)
"""Before a launch that ended so, or was killed, begins anew."""


class RemoteLaunch(ABC):
    """Sends a launch away to run inside a job of its own, which reads its options from a file beside its sweep."""

    def __init__(self, request: ExecutorRequest, profile: Profile, limits: Limits):
        self._request, self._profile, self._limits = request, profile, limits
        self._sweep, self._store = request.sweep, request.store

    @abstractmethod
    def _options_inside(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """Return the executor of the launch inside, and its options; `folder` is the job's."""

    @abstractmethod
    def _submit_job(self, name: str, folder: Path) -> list[str]:
        """Submit the job, whose function is given its folder, and return its identity."""

    def send_launch(self, options: LaunchOptions) -> LaunchJob:
        """Return the job in which a launch of this sweep is on its way already, or submit one.

        Raises:
            SlurmError: sbatch refused, or the controller does not answer.
        """
        submission = self._underway() or self._submit(options)
        return LaunchJob(submission.job_ids[0], submission.folder)

    def _underway(self) -> Submission | None:
        """Return the launch that is there already, if there is one; forget those that are over."""
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
        # the sweep, its task's code and the options as they are now, whatever becomes of them
        spec = folder / "sweep.yaml"
        spec.write_text(json.dumps(self._sweep.spec(), indent=1))
        executor, executor_options = self._options_inside(folder)
        inside = replace(
            self._request.options,
            sweep=str(spec),
            store=self._store.address,
            executor=executor,
            executor_options=executor_options,
            code_version=options.code_version,
            data=options.data,
            **SETTLED_HERE,
        )
        (folder / OPTIONS_FILE).write_text(inside.to_json())
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
    """Sends a launch away as a job of one CPU."""

    def _options_inside(self, folder: Path) -> tuple[str, dict[str, Any]]:
        options = dict(self._request.options.executor_options)
        if options.get("cluster") is not None:
            options["cluster"] = str(shutil.copy(options["cluster"], folder / "cluster.toml"))
        return "slurm", options

    def _submit_job(self, name: str, folder: Path) -> list[str]:
        own = self._own_profile()
        elsewhere = min(MAX_EXCLUDED_NODES, self._limits.partition_of(own).nodes - 1)
        return submit_array(own, name, folder, run_supervisor, [[str(folder)]], elsewhere=elsewhere)

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
        return replace(asked, walltime_min=int(min(MAX_WALLTIME_MIN, longest or MAX_WALLTIME_MIN)))


def launch_process(file: Path) -> subprocess.Popen[bytes]:
    """Start `depthrate run` with the options in a file, where it finds its data sets as they say."""
    data = LaunchOptions.from_json(file.read_text()).data
    variables = {} if data is None else {"DEPTHRATE_DATA": data}
    module = "depthrate.orchestrator.cli.launch_file"
    return start_python(module, str(file), variables=variables, stdin=subprocess.DEVNULL)


def run_supervisor(arguments: list[str]) -> None:
    """Run `depthrate run` inside the job, whose folder is the only argument."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    (folder,) = arguments
    start_marker(Path(folder), os.environ["SLURM_JOB_ID"], in_job.restarts()).touch()
    _Launch(Path(folder) / OPTIONS_FILE).run()


class _Launch:
    """`depthrate run` inside the job; it queues again when time is up."""

    def __init__(self, file: Path):
        self._file = file
        self._asked: signal.Signals | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # SLURM sends its warning to every process: what is started from here on must not die of it
        for number in (signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Wait for its end; begin anew where the cluster was not to be reached, or it was killed."""
        for pause_s in (*RELAUNCH_DELAYS_S, None):
            code = self._run_once()
            log.info("depthrate run ended with code %d in job %s", code, in_job.job_id())
            if self._asked is not None or pause_s is None or not (code == BAD_INPUT or code < 0):
                break
            log.info("it begins anew in %.0f s", pause_s)
            self._pause(pause_s)
        if self._asked is not None and code != 0:
            requeue_job(self._asked, "the launch goes on", has_progressed=True)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < until:
            time.sleep(0.5)  # a signal ends no sleep

    def _run_once(self) -> int:
        if self._asked is not None:
            return BAD_INPUT
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a handler would not be inherited
        self._process = launch_process(self._file)
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        return self._process.wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None and self._process is not None:
            self._asked = signal.Signals(number)
            self._process.send_signal(signal.SIGTERM)  # it leaves, and the jobs go on
