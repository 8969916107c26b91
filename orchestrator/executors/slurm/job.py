"""Inside a SLURM job: run its packs, save their state when told that time is up, and go back into the queue."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from dataclasses import replace
from types import FrameType

from depthrate.orchestrator.attempts.record import nth_attempt_id, read_attempt, write_lost
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd, AttemptSpec
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.executors.slurm.gpu_sharing import shared_gpus
from depthrate.slurm import in_job
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")
LIMIT_MARGIN_S = 75.0
"""SLURM sends the warning of a time limit up to a minute early."""
KILL_WAIT_S = 120.0
"""Longest wait for SLURM to end a job that it has agreed to put back into the queue."""


def run_bundle(lines: list[str]) -> None:
    """Run packs, given as `AttemptSpec.to_json` wrote them, as many at once as the job's GPUs or CPUs take."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    bundle = _Bundle([AttemptSpec.from_json(line) for line in lines])
    for number in (signal.SIGUSR2, signal.SIGTERM):  # in place of submitit's handlers
        signal.signal(number, bundle.on_signal)
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    bundle.run()


class _Bundle:
    """The packs of one job."""

    def __init__(self, jobs: list[AttemptSpec]):
        self.job_id, self.restarts = in_job.job_id(), in_job.restart_count()
        self.store = Store(jobs[0].options.store)
        os.environ["DEPTHRATE_JOB_ID"] = self.job_id  # for the attempts' records
        left = self._left(jobs)
        self.waiting = deque(replace(job, attempt_id=nth_attempt_id(job.attempt_id, self.restarts)) for job in left)
        self.running: dict[str, AttemptSpec] = {}
        self.asked: signal.Signals | None = None
        self.has_progressed = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note that we are asked to end; the loop does the rest."""
        self.asked = self.asked or signal.Signals(number)

    def run(self) -> None:
        """Run all packs, or as many as there is time for."""
        if not self.waiting:
            return
        gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        packs_per_gpu = int(os.environ.get("DEPTHRATE_PACKS_PER_GPU") or 1)
        slots = len(gpus) * packs_per_gpu or int(os.environ.get("SLURM_CPUS_PER_TASK") or 1)
        with shared_gpus(gpus, packs_per_gpu) as names:
            self._run_on(LocalExecutor(min(slots, len(self.waiting)), names))
        if self.asked and self.waiting:
            left = counted(len(self.waiting), "pack goes on", "packs go on")
            requeue_job(self.asked, left, has_progressed=self.has_progressed)

    def _run_on(self, executor: LocalExecutor) -> None:
        is_stopping = False
        try:
            while self.running or (self.waiting and not self.asked):
                if self.asked and not is_stopping:
                    is_stopping = True
                    executor.stop()
                while not self.asked and self.waiting and len(self.running) < executor.capacity:
                    job = self.waiting.popleft()
                    self.running[job.attempt_id] = job
                    executor.submit([job])
                for end in executor.poll(timeout_s=0.2):
                    self._handle(end)
        finally:
            executor.close()

    def _left(self, jobs: list[AttemptSpec]) -> list[AttemptSpec]:
        """Return the packs that this job still has to do.

        Those that are committed are done, by others if this job has just been started; and those that failed in it before it
        was started anew are the driver's, which may have submitted them again.
        """
        try:
            committed = take_snapshot(self.store).trial_ids()
        except (OSError, StoreError) as error:
            log.warning("store not read, everything is run again: %s", error)
            return jobs
        return [job for job in jobs if not committed.issuperset(job.trial_ids) and not self._has_failed(job)]

    def _has_failed(self, job: AttemptSpec) -> bool:
        for restart in range(self.restarts - 1, -1, -1):
            record = read_attempt(self.store, job.sweep, nth_attempt_id(job.attempt_id, restart))
            if record is not None:
                return record.get("state") in (AttemptState.FAILED, AttemptState.LOST)
        return False

    def _handle(self, end: AttemptEnd) -> None:
        job = self.running.pop(end.attempt_id)
        state = read_attempt(self.store, job.sweep, end.attempt_id) or {}
        self.has_progressed |= bool(state.get("trials_done") or state.get("checkpoints"))
        if end.exit_message is not None and self.asked:  # told to end before it could listen
            self.waiting.append(job)
        elif end.exit_message is not None:
            self._record_death(job, end.exit_message, state)
        elif state.get("state") is AttemptState.INTERRUPTED:
            self.waiting.append(job)

    def _record_death(self, job: AttemptSpec, death: str, state: dict[str, object]) -> None:
        """Write down how a worker died that could not do so itself; whoever drives the sweep decides what then."""
        known = {
            "attempt_id": job.attempt_id,
            "sweep": job.sweep,
            "pack_id": job.pack_id,
            "trial_ids": job.trial_ids,
            "device": job.options.device,
            "job_id": self.job_id,
        }
        kind = FailureKind.OUT_OF_MEMORY if _kernel_killed_for_memory() else FailureKind.WORKER_LOST
        try:
            write_lost(self.store, known, state, kind=kind, error=death)
        except OSError as error:
            log.warning("end of attempt %s not written: %s", job.attempt_id, error)


def requeue_job(asked: signal.Signals, what_goes_on: str, *, has_progressed: bool) -> None:
    """Queue this job again after a warning or a preemption; a cancelled job, or one that got nowhere, just ends."""
    left_s = in_job.seconds_left()
    is_limit = left_s is not None and left_s <= LIMIT_MARGIN_S + float(os.environ.get("DEPTHRATE_WARNING_S") or 0)
    why = "its time limit is near" if is_limit else f"told to end by {asked.name}"
    if in_job.is_ending():
        log.info("cancelled")
    elif is_limit and not has_progressed:
        log.error("the time limit came before anything could be saved; a longer walltime_min is needed")
    elif in_job.requeue():
        log.info("%s; %s when this job is started again", why, what_goes_on)
        time.sleep(KILL_WAIT_S)  # a job that ends by itself now would count as completed
    else:
        log.warning("%s, and SLURM does not take this job back; whoever drives the sweep submits it anew", why)


def _kernel_killed_for_memory() -> bool:
    """Whether a process of this job's control group was killed for lack of memory."""
    try:
        with open("/proc/self/cgroup") as file:
            group = file.readline().rpartition("::")[2].strip()
        with open(f"/sys/fs/cgroup{group}/memory.events") as file:
            return any(line.split()[0] == "oom_kill" and int(line.split()[1]) > 0 for line in file)
    except (OSError, IndexError, ValueError):
        return False
