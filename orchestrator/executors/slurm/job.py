"""Code that runs inside a SLURM job: run its packs, save checkpoints on a signal, and requeue the job."""

import logging
import os
import signal
import time
from collections import deque
from dataclasses import replace
from types import FrameType

from depthrate.orchestrator.attempts.record import (
    SchedulerFacts,
    lost_attempt,
    nth_attempt_id,
    read_attempt,
    write_lost,
)
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.slurm import in_job
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")
LIMIT_MARGIN_S = 75.0
"""Tolerance in seconds for the warning before the time limit, which SLURM sends up to a minute early."""
REQUEUE_MESSAGE = "received {}: requeue for restart {}"
"""Message in a job's log before it requeues itself: the only trace of the reason."""
REQUEUE_WAIT_S = 120.0
"""Longest wait in seconds for SLURM to end a job whose requeue it has accepted."""


def run_bundle(lines: list[str]) -> None:
    """Run packs, one line of `AttemptSpec.to_json` each, in parallel on the job's GPUs or CPUs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    in_job.mark_started()
    bundle = _Bundle([AttemptSpec.from_json(line) for line in lines])
    for number in (signal.SIGUSR2, signal.SIGTERM):  # replaces submitit's handlers
        signal.signal(number, bundle.on_signal)
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    bundle.run()


class _Bundle:
    """The packs of one job."""

    def __init__(self, jobs: list[AttemptSpec]):
        self.job_id, self.restarts = in_job.job_id(), in_job.restart_count()
        self.store = Store(jobs[0].options.store)
        os.environ["DEPTHRATE_JOB_ID"] = self.job_id  # for the attempts' records
        pending = self._select_pending(jobs)
        self.waiting = deque(replace(job, attempt_id=nth_attempt_id(job.attempt_id, self.restarts)) for job in pending)
        self.running: dict[str, AttemptSpec] = {}
        self.stop_signal: signal.Signals | None = None
        self.has_progressed = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Record the request to stop, which the loop handles."""
        self.stop_signal = self.stop_signal or signal.Signals(number)

    def run(self) -> None:
        """Run all packs, or as many as the time limit allows."""
        if not self.waiting:
            return
        gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        packs_per_gpu = int(os.environ.get("DEPTHRATE_PACKS_PER_GPU") or 1)
        slots = len(gpus) * packs_per_gpu or int(os.environ.get("SLURM_CPUS_PER_TASK") or 1)
        executor = LocalExecutor(slots, gpus)
        executor.start(len(self.waiting))
        self._run_on(executor)
        if self.stop_signal and self.waiting:
            pending = counted(len(self.waiting), "pack resumes", "packs resume")
            requeue_job(self.stop_signal, pending, has_progressed=self.has_progressed)

    def _run_on(self, executor: LocalExecutor) -> None:
        is_stopping = False
        try:
            while self.running or (self.waiting and not self.stop_signal):
                if self.stop_signal and not is_stopping:
                    is_stopping = True
                    executor.stop()
                while not self.stop_signal and self.waiting and len(self.running) < executor.capacity:
                    job = self.waiting.popleft()
                    self.running[job.attempt_id] = job
                    executor.submit([job])
                for end in executor.poll(timeout_s=0.2):
                    self._handle(end)
        finally:
            executor.close()

    def _select_pending(self, jobs: list[AttemptSpec]) -> list[AttemptSpec]:
        """Return the packs that are neither committed nor failed in an earlier start of this job.

        Other jobs may have committed packs. Failed packs belong to the driver, which may have resubmitted them.
        """
        try:
            committed = take_snapshot(self.store).trial_ids()
        except (OSError, StoreError) as error:
            log.warning("cannot read the store, so all packs are rerun: %s", error)
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
        if end.exit_message is not None and self.stop_signal:  # signal arrived before the handler was installed
            self.waiting.append(job)
        elif end.exit_message is not None:  # the worker could not write the end. The driver decides about a retry
            kind = FailureKind.OUT_OF_MEMORY if _kernel_killed_for_memory() else FailureKind.WORKER_LOST
            facts = SchedulerFacts(
                job_id=self.job_id, pack_id=job.pack_id, trial_ids=job.trial_ids, device=job.options.device
            )
            lost = lost_attempt(end.attempt_id, job.sweep, state, kind=kind, error=end.exit_message, facts=facts)
            try:
                write_lost(self.store, lost)
            except OSError as error:
                log.warning("cannot write the end of attempt %s: %s", job.attempt_id, error)
        elif state.get("state") is AttemptState.INTERRUPTED:
            self.waiting.append(job)


def requeue_job(stop_signal: signal.Signals, what_resumes: str, *, has_progressed: bool) -> None:
    """Requeue this job after a time limit warning or a preemption, unless it was cancelled or made no progress."""
    remaining_s = in_job.seconds_left()
    margin_s = LIMIT_MARGIN_S + float(os.environ.get("DEPTHRATE_WARNING_S") or 0)
    is_limit = remaining_s is not None and remaining_s <= margin_s
    if in_job.is_ending():
        log.info("SLURM is ending this job")
    elif is_limit and not has_progressed:
        log.error("SLURM ends this job before anything is saved. At its time limit: increase walltime_min.")
    else:
        log.info("%s. %s then", REQUEUE_MESSAGE.format(stop_signal.name, in_job.restart_count() + 1), what_resumes)
        if in_job.requeue():
            time.sleep(REQUEUE_WAIT_S)  # a job that exits by itself now would count as completed
        else:
            log.warning("SLURM refuses to requeue this job. The driver of the sweep resubmits it.")


def _kernel_killed_for_memory() -> bool:
    """Return whether the kernel killed a process of this job's control group because memory ran out."""
    try:
        with open("/proc/self/cgroup") as file:
            group = file.readline().rpartition("::")[2].strip()
        with open(f"/sys/fs/cgroup{group}/memory.events") as file:
            return any(line.split()[0] == "oom_kill" and int(line.split()[1]) > 0 for line in file)
    except (OSError, IndexError, ValueError):
        return False
