"""The SLURM executor: packs as jobs of arrays. Jobs keep running without the launch, and the next launch adopts them.

`Submitter` has what is submitted, `JobQueue` what is watched, and `PackOutcomes` decides how each pack ended.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd, Estimate, Executor, SubmittedPack
from depthrate.orchestrator.executors.errors import QueueFullError, SubmitError, SubmitRateError
from depthrate.orchestrator.executors.machine import USABLE_SHARE
from depthrate.orchestrator.executors.slurm.excluded_nodes import ExcludedNodes
from depthrate.orchestrator.executors.slurm.folders import remove_finished_folders
from depthrate.orchestrator.executors.slurm.job_reports import log_job_states, log_restarts
from depthrate.orchestrator.executors.slurm.outcomes import PackOutcomes
from depthrate.orchestrator.executors.slurm.request_rate import RecordPolls
from depthrate.orchestrator.executors.slurm.submissions import (
    PLANNED_JOB_NAME,
    Submission,
    jobs_folder,
    jobs_of_sweep,
)
from depthrate.orchestrator.executors.slurm.submitter import (
    GUESSED_PARALLEL,
    SbatchRateError,
    SubmitQuota,
    Submitter,
    bundle,
    job_durations_s,
    share_of_slots_used,
)
from depthrate.orchestrator.executors.slurm.watched_jobs import JobQueue
from depthrate.slurm.cluster_limits import Limits, SubmitLimits
from depthrate.slurm.command import CALLS, ignored_variables_message, time_outside_slurm
from depthrate.slurm.errors import SlurmError, SubmitLimitError
from depthrate.slurm.job_states import JobState
from depthrate.slurm.profile import Profile, expiring_keys_message
from depthrate.slurm.script import batch_script
from depthrate.slurm.submit import cancel_jobs
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import FailureKind
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
MAX_RECORD_POLL_INTERVAL_S = 5.0
"""Longest interval between reads of the records on a file system, in seconds."""
MAX_REMOTE_RECORD_POLL_INTERVAL_S = 15.0
"""Longest interval between reads of the records on an object store, in seconds."""
EARLY_END_S = 18.0
"""Time in seconds after a submission in which most faulty jobs fail to start or end."""


class SlurmExecutor(Executor):
    """Runs packs as jobs on a SLURM cluster, including the live jobs of earlier launches."""

    capacity = 1_000_000
    outlives_driver = True
    scheduler_calls = CALLS

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        store: Store,
        sweep: str,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
        submit_limits: SubmitLimits | None = None,
    ):
        self.profile, self.limits, self.store, self.sweep, self.device = profile, limits, store, sweep, device
        self.workers = (profile.array_parallelism or GUESSED_PARALLEL) * profile.slots
        worker_gb = profile.worker_mem_gb(device)
        self.memory_bytes = None if worker_gb is None else USABLE_SHARE * worker_gb * 2**30
        self.gpu_share = 1 / profile.packs_per_gpu
        self._clock = clock
        self.num_nodes = max(1, *(partition.num_usable(profile) for partition in limits.partitions_of(profile)))
        self._start_failures = StartFailures(self.num_nodes)
        self._nodes = ExcludedNodes(self._start_failures, self.num_nodes, profile.exclude)
        self._folder = jobs_folder(profile, store, sweep)
        self._queue = JobQueue(store, self._folder, clock, profile.grace_s, profile.poll_s)
        self._outcomes = PackOutcomes(store, sweep, self._start_failures, profile)
        quota = SubmitQuota(submit_limits or SubmitLimits(), clock, self._queue.requests.record_count)
        self._submitter = Submitter(profile, limits, store, sweep, quota, self._queue.requests)
        longest_s = MAX_REMOTE_RECORD_POLL_INTERVAL_S if store.uses_requests else MAX_RECORD_POLL_INTERVAL_S
        self._polls = RecordPolls(clock, longest_s)

    def check(self, packs: Sequence[Pack], estimate_s: Estimate) -> None:
        """Reject packs that exceed a limit of the cluster.

        Raises:
            SlurmError: A limit is exceeded.
        """
        self.limits.check(self.profile, len(self._bundles(packs, estimate_s)))

    def summary(self) -> str:
        """Return the cluster, the resources per job and the number of adopted packs as a string."""
        profile = self.profile
        resources = f"{profile.resources_text()}, {profile.walltime_min} min"
        default = "by plugin" if profile.partition_by_plugin else self.limits.partition_of(profile).name
        partition = profile.partition or default
        text = (
            f"SLURM cluster {self.limits.cluster}, partition {partition}; per job: {resources}; packs on {self.device}"
        )
        num_adopted = len(self._queue.adopted)
        text += f"; {counted(num_adopted, 'pack')} already submitted" if num_adopted else ""
        return "; ".join([text, *filter(None, (ignored_variables_message(), expiring_keys_message(profile)))])

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return the number of jobs, their cost in hours, the share of slot time in use, and the batch script."""
        bundles = self._bundles(packs, estimate_s)
        seconds = [estimate_s(pack) for pack in packs]
        durations_s = job_durations_s(packs, seconds, self._submitter.profile_within_limits())
        hours = None if durations_s is None else sum(durations_s) / 3600
        per_array = min(len(bundles), self.limits.array_size)
        name = PLANNED_JOB_NAME.format(sweep=self.sweep)
        job_name = self.profile.job_name_of(name, self.sweep)
        return {
            "jobs": len(bundles),
            "arrays": -(-len(bundles) // self.limits.array_size),
            "already_submitted": len(self._queue.adopted),
            "estimated_job_hours": hours,
            "cpu_hours": None if hours is None or self.profile.gpus else hours * self.profile.cpus,
            "gpu_hours": None if hours is None or not self.profile.gpus else hours * self.profile.gpus,
            "share_of_slots_used": share_of_slots_used(packs, seconds, self.profile),
            "batch_script": batch_script(self.profile, job_name, per_array, self._folder / name) if bundles else "",
        }

    def _bundles(self, packs: Sequence[Pack], estimate_s: Estimate) -> list[list[Pack]]:
        return bundle(packs, [estimate_s(pack) for pack in packs], self._submitter.profile_within_limits())

    def adopt(self, submissions: Sequence[Submission], states: dict[str, JobState]) -> None:
        """Watch the live jobs of other launches."""
        self._queue.adopt(submissions, states)

    def submitted(self, *, refresh: bool = False) -> dict[str, SubmittedPack]:
        """Map attempts to the live packs of other launches. Jobs submitted since are adopted on `refresh`."""
        if refresh:
            watched = {job.submission.name for job in self._queue.jobs.values()}
            try:
                submissions, states = jobs_of_sweep(self.store, self.sweep, self.limits.cluster)
                self.adopt([submission for submission in submissions if submission.name not in watched], states)
            except SlurmError as error:
                log.warning("cannot list the jobs of peer launches: %s", error)
            finally:
                self._queue.requests.record_count()
        return self._queue.adopted

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Submit packs as arrays, within the cluster's array size.

        Raises:
            QueueFullError: The remaining packs must wait until other jobs end, or until sbatch may be called again.
            SubmitError: sbatch refused the jobs.
        """
        self._queue.delete_finished()
        if self._queue.is_away and self._queue.jobs:  # sbatch would block the driver until the controller answers again
            raise QueueFullError("SLURM's controller does not answer", jobs)
        unsubmitted = {job.attempt_id: job for job in jobs}
        before = self._queue.requests.submitted_at
        try:
            for submission, failed_nodes in self._submitter.submit_packs(
                jobs, self._nodes.for_packs, self._queue.alive
            ):
                self._nodes.register_jobs(submission.job_ids, failed_nodes)
                self._queue.watch(submission)
                for pack in (pack for packs in submission.packs for pack in packs):
                    del unsubmitted[pack.attempt_id]
        except OSError as error:  # for instance a full store. Unrecorded jobs are not submitted
            raise QueueFullError(
                f"cannot write to {self._folder} or the store: {error}", [*unsubmitted.values()]
            ) from None
        except SlurmError as error:
            kind: type[SubmitError] = SubmitRateError if isinstance(error, SbatchRateError) else SubmitError
            kind = QueueFullError if isinstance(error, SubmitLimitError) else kind
            raise kind(str(error), [*unsubmitted.values()]) from None
        finally:
            if self._queue.requests.submitted_at != before:
                self._polls.expect_change()

    def nodes_by_attempt(self) -> dict[str, str]:
        """Map the submitted ID of each started attempt to its node."""
        return {
            submitted: job.state.node
            for job in self._queue.jobs.values()
            if job.state.node
            for submitted in job.current
        }

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Exclude these nodes from new and waiting jobs."""
        self._nodes.unhealthy = list(nodes)
        self._exclude_from_waiting()

    def _exclude_from_waiting(self) -> None:
        if not self._queue.is_away:
            self._nodes.update(job_id for job_id, job in self._queue.jobs.items() if job.is_waiting)

    def terminate(self, attempt_id: str, reason: str) -> bool:
        """Stop watching a stale attempt, and cancel its job if it runs nothing else."""
        self._queue.adopted.pop(attempt_id, None)
        if (job := self._queue.drop_pack(attempt_id)) is not None:
            with suppress(SlurmError):
                cancel_jobs([job.job_id])
            self._queue.forget(job)
        return False

    def running(self) -> dict[str, str]:
        """Map the submitted ID of each started attempt to the ID of its current attempt."""
        return {submitted: now for job in self._queue.jobs.values() for submitted, now in job.current.items()}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s`, poll the queue if due, and return the attempts that ended."""
        time.sleep(timeout_s)
        queue = self._queue
        if not queue.jobs or not self._polls.is_due:
            return []
        before = queue.states()
        is_new = self._clock() - queue.requests.submitted_at < EARLY_END_S
        has_overdue = bool(queue.overdue(60 * self.profile.walltime_min, time.time()))
        queue.poll_if_due(is_news_due=is_new or self._outcomes.any_interrupted or has_overdue)
        started = time_outside_slurm()
        ends = self._collect_ends()
        self._polls.record(time_outside_slurm() - started, has_changed=bool(ends) or before != queue.states())
        return ends

    def _collect_ends(self) -> list[AttemptEnd]:
        """Return the attempts that ended according to their records and the last answer of the controller."""
        ends, queue = [], self._queue
        queue.read_failed_starts()
        self._outcomes.refresh(queue.jobs.values())
        for job in list(queue.jobs.values()):
            is_over, is_settled = queue.is_over(job), queue.is_settled(job)
            ends += self._outcomes.pop_ended(job, self.profile.slots, is_over=is_over, is_settled=is_settled)
            if queue.is_away:
                ends += self._outcomes.pop_committed(job)
            if not job.packs:
                queue.forget(job)
        for end in ends:
            queue.adopted.pop(end.attempt_id, None)
            if (record := end.record) is not None:
                self._submitter.record_pack((record["ended_at"] or record["heartbeat_at"]) - record["started_at"])
        self.num_nodes, self.waiting_reasons = self._nodes.num_usable, queue.waiting_reasons()
        self._exclude_from_waiting()
        if self._start_failures.starts_nowhere({job.state.node for job in queue.jobs.values() if job.is_running}):
            ends = [
                replace(end, kind=FailureKind.FAILED_TO_START_ANYWHERE) if end.kind is FailureKind.NOT_BEGUN else end
                for end in ends
            ]
        restarted, queue.restarted = queue.restarted, []
        log_restarts(self.store, restarted)
        log_job_states(queue, self.profile)
        earlier, self._outcomes.earlier_ends = self._outcomes.earlier_ends, []
        return [*earlier, *ends]

    def stop(self, *, is_hopeless: bool = False) -> None:
        """Let the jobs run, so that the next launch adopts them. Waiting jobs are cancelled if `is_hopeless`."""
        waiting = [job for job in self._queue.jobs.values() if job.is_waiting] if is_hopeless else []
        try:
            cancel_jobs([job.job_id for job in waiting])
        except SlurmError as error:
            log.warning("cannot cancel the waiting jobs: %s", error)
            return
        for job in waiting:
            self._queue.forget(job)

    def close(self) -> None:
        """Clean up after finished jobs. Unfinished jobs keep running (see `stop`)."""
        with suppress(StoreError, OSError):
            self._queue.delete_finished()
            remove_finished_folders(self.store, self.sweep, self._queue.folders, self.profile)
