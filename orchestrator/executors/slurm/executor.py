"""The SLURM executor: bundle packs into job arrays, submit them, poll their states and report how each pack ended.

Jobs keep running without the launch, and the next launch adopts them.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from depthrate.orchestrator.attempts.events import log_event
from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import (
    AttemptEnd,
    Estimate,
    Executor,
    QueueFullError,
    SubmitError,
    SubmitRateError,
    SubmittedPack,
)
from depthrate.orchestrator.executors.machine import USABLE_SHARE
from depthrate.orchestrator.executors.slurm.folders import remove_finished_folders
from depthrate.orchestrator.executors.slurm.outcomes import PackOutcomes
from depthrate.orchestrator.executors.slurm.submissions import (
    PLANNED_JOB_NAME,
    Submission,
    is_alive,
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
from depthrate.orchestrator.executors.slurm.watched_jobs import JobQueue, WatchedJob
from depthrate.slurm.cluster_limits import Limits, SubmitLimits
from depthrate.slurm.command import CALLS, SlurmError, ignored_variables_message, time_outside_slurm
from depthrate.slurm.job_states import JobState, earlier_starts, parse_array_id, wait_text
from depthrate.slurm.profile import Profile, expiring_keys_message
from depthrate.slurm.script import batch_script
from depthrate.slurm.submit import SubmitLimitError, cancel_jobs, exclude_nodes
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import FailureKind
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
MIN_RECORD_POLL_INTERVAL_S = 2.0
"""Seconds after a change until records are read again. The interval grows while nothing changes. The request budget decides
whether the queue is polled at the same time."""
MAX_RECORD_POLL_INTERVAL_S = 5.0
"""Longest interval between reads of the records on a file system, in seconds."""
MAX_REMOTE_RECORD_POLL_INTERVAL_S = 15.0
"""Longest interval between reads of the records on an object store, in seconds."""
PROBABLE_CAUSES = {"OUT_OF_MEMORY": "mem_gb was too small", "OutOfMemory": "mem_gb was too small"}
PROBABLE_CAUSES |= dict.fromkeys(("TIMEOUT", "TimeLimit"), "walltime_min was too short")
"""State, or reason of an ending job -> probable cause, reported before the job's records are known."""
RESTARTS = {"PREEMPTED": "preempted, requeued", "NODE_FAIL": "lost with their node, requeued"}
RESTARTS |= {"REQUEUED": "requeued after a preemption or near their time limit"}  # by themselves, on SLURM's signal
"""Final state of a job's earlier start -> description of its restart."""
MIN_JOB_MINUTES = 1.0
"""Shortest run time of a bundle in minutes, if the cluster accepts fewer jobs than there are packs."""
EARLY_END_S = 18.0
"""Time in seconds after a submission in which most faulty jobs fail to start or end."""
POLL_BACKOFF_FACTOR = 20
"""Poll backoff: after reading records for d seconds, wait 20 d, so that reading takes at most 5 % of the time."""
ORDINARY_REASONS = ("Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime")
"""Reasons why jobs wait that require no action."""
MAX_PACK_TIMES = 32
"""Maximum number of pack run times that are stored for estimates."""


class SlurmExecutor(Executor):
    """Runs packs as jobs on a SLURM cluster, including the live jobs of earlier launches."""

    capacity = 1_000_000
    outlives_driver = True

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
        self._queue = JobQueue(clock, profile.grace_s, profile.poll_s)
        self.quota = SubmitQuota(submit_limits or SubmitLimits(), clock, self._queue.requests.record_count)
        self.num_nodes = self._num_nodes = max(1, limits.partition_of(profile).num_usable(profile))
        self._nodes = StartFailures(self._num_nodes)
        self._unhealthy_nodes: list[str] = []
        """Nodes that the driver excludes."""
        self._excluded_from_waiting: list[str] = []
        """Nodes excluded when waiting jobs were last updated."""
        self._failed_nodes_by_array: dict[str, list[str]] = {}
        """Array -> nodes where its packs failed."""
        self._outcomes = PackOutcomes(store, sweep, self._nodes, profile)
        self._folders = {jobs_folder(profile, store, sweep)}
        """Folders that may contain folders of finished jobs."""
        self._adopted: dict[str, SubmittedPack] = {}
        self._finished: list[Submission] = []
        """Finished submissions of earlier launches that are still in the store."""
        self._pack_s: deque[float] = deque(maxlen=MAX_PACK_TIMES)
        """Run times of the latest packs, in seconds."""
        self._is_full = False
        """True if the last submission stopped at a limit."""
        self._refusal = ""
        """Message of that limit."""
        self._next_poll = float("-inf")
        self._poll_interval_s = MIN_RECORD_POLL_INTERVAL_S
        self._submitter = Submitter(profile, limits, store, sweep, self.quota, self._queue.requests)

    def scheduler_calls(self) -> dict[str, int]:
        """Return the number of calls per SLURM command."""
        return dict(CALLS)

    def max_parallel(self, packs: int) -> int:
        """Return the number of packs that can run in parallel: all, unless array_parallelism bounds the jobs."""
        return min(packs, self.workers) if self.profile.array_parallelism else packs

    @property
    def submitted(self) -> dict[str, SubmittedPack]:
        """Attempt -> pack of the live packs from earlier launches."""
        return self._adopted

    def check(self, packs: Sequence[Pack], estimate_s: Estimate) -> None:
        """Reject packs that exceed a limit of the cluster.

        Raises:
            SlurmError: A limit is exceeded.
        """
        self.limits.check(self.profile, len(self._bundles(packs, estimate_s)))

    def summary(self) -> str:
        """Return the cluster, the resources per job and the number of adopted packs as a string."""
        profile, partition = self.profile, self.limits.partition_of(self.profile)
        resources = f"{profile.resources_text()}, {profile.walltime_min} min"
        partition_name = profile.partition or partition.name
        text = f"SLURM cluster {self.limits.cluster}, partition {partition_name}; per job: {resources}; packs on {self.device}"
        text += f"; {counted(len(self._adopted), 'pack')} already submitted" if self._adopted else ""
        return "; ".join([text, *filter(None, (ignored_variables_message(), expiring_keys_message(profile)))])

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return the number of jobs, their cost in hours, the share of slot time in use, and the batch script."""
        bundles = self._bundles(packs, estimate_s)
        seconds = [estimate_s(pack) for pack in packs]
        durations_s = job_durations_s(packs, seconds, self._profile_within_limits())
        hours = None if durations_s is None else sum(durations_s) / 3600
        per_array = min(len(bundles), self.limits.array_size)
        name = PLANNED_JOB_NAME.format(sweep=self.sweep)
        folder = jobs_folder(self.profile, self.store, self.sweep) / name
        return {
            "jobs": len(bundles),
            "arrays": -(-len(bundles) // self.limits.array_size),
            "already_submitted": len(self._adopted),
            "estimated_job_hours": hours,
            "cpu_hours": None if hours is None or self.profile.gpus else hours * self.profile.cpus,
            "gpu_hours": None if hours is None or not self.profile.gpus else hours * self.profile.gpus,
            "share_of_slots_used": share_of_slots_used(packs, seconds, self.profile),
            "batch_script": batch_script(self.profile, name, per_array, folder) if bundles else "",
        }

    def _bundles(self, packs: Sequence[Pack], estimate_s: Estimate) -> list[list[Pack]]:
        return bundle(packs, [estimate_s(pack) for pack in packs], self._profile_within_limits())

    def adopt(self, submissions: Sequence[Submission], states: dict[str, JobState]) -> None:
        """Watch the live jobs of earlier launches. Finished submissions are deleted when this executor is used.

        Committed packs are not watched, even if their job still runs other packs.
        """
        committed: set[str] = set()
        if any(is_alive(state) for state in states.values()):
            with suppress(OSError, StoreError):  # an unreadable store only delays a result
                committed = take_snapshot(self.store).trial_ids()
        for submission in reversed(submissions):  # if a trial was submitted several times, the latest submission counts
            for job_id, packs in submission.jobs():
                pending = [pack for pack in packs if not committed.issuperset(pack.trial_ids)]
                if pending and is_alive(states.get(job_id)):
                    self._queue.jobs[job_id] = WatchedJob(job_id, submission, pending, states[job_id])
                    self._adopted |= {pack.attempt_id: pack for pack in pending}
            is_watched = any(job.submission is submission for job in self._queue.jobs.values())
            if not is_watched and (submission.job_ids or submission.was_never_accepted(time.time())):
                self._finished.append(submission)

    def _forget_finished_jobs(self) -> None:
        """Delete finished submissions of earlier launches. Not part of `adopt`, because plans only read the store."""
        while self._finished:
            self._delete_submission(self._finished.pop())

    def _delete_submission(self, submission: Submission) -> None:
        submission.delete(self.store)
        self._folders.add(Path(submission.folder).parent)

    def adopt_submitted(self) -> dict[str, SubmittedPack]:
        """Adopt jobs that peer launches have submitted. Returns {} while the controller does not answer."""
        before, watched = set(self._adopted), {job.submission.name for job in self._queue.jobs.values()}
        try:
            submissions, states = jobs_of_sweep(self.store, self.sweep, self.limits.cluster)
        except SlurmError as error:
            log.warning("cannot list the jobs of peer launches: %s", error)
            return {}
        finally:
            self._queue.requests.record_count()
        self.adopt([submission for submission in submissions if submission.name not in watched], states)
        return {attempt_id: self._adopted[attempt_id] for attempt_id in self._adopted.keys() - before}

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Submit packs as arrays, within the cluster's array size.

        Raises:
            QueueFullError: The remaining packs must wait until other jobs end, or until sbatch may be called again.
            SubmitError: sbatch refused the jobs.
        """
        self._forget_finished_jobs()
        if self._queue.is_away and self._queue.jobs:  # sbatch would block the driver until the controller answers again
            raise QueueFullError("SLURM's controller does not answer", jobs)
        requests = self._queue.requests
        if self._is_full and not requests.may_submit(is_full=True):
            raise QueueFullError(self._refusal, jobs)
        before = requests.submitted_at
        typical_s = median(self._pack_s) if self._pack_s else None
        sent: set[str] = set()
        self._is_full = False
        try:
            by_failed_nodes: dict[tuple[str, ...], list[AttemptSpec]] = {}
            for job in sorted(jobs, key=lambda job: bool(job.avoid)):  # packs without failures first
                by_failed_nodes.setdefault(tuple(job.avoid), []).append(job)
            for failed_nodes, members in by_failed_nodes.items():
                seconds = [typical_s if job.estimated_s is None else job.estimated_s for job in members]
                bundles = bundle(members, seconds, self._profile_within_limits())
                for submission in self._submitter.submit(bundles, self._excluded(failed_nodes), self._alive):
                    self._failed_nodes_by_array |= {
                        parse_array_id(job_id): list(failed_nodes) for job_id in submission.job_ids if failed_nodes
                    }
                    for job_id, packs in submission.jobs():
                        self._queue.jobs[job_id] = WatchedJob(job_id, submission, list(packs))
                        sent |= {pack.attempt_id for pack in packs}
        except OSError as error:  # for instance a full store. Unrecorded jobs are not submitted
            unsubmitted = [job for job in jobs if job.attempt_id not in sent]
            raise QueueFullError(f"cannot write to the store: {error}", unsubmitted) from None
        except SlurmError as error:
            self._is_full, self._refusal = isinstance(error, SubmitLimitError), str(error)
            kind: type[SubmitError] = QueueFullError if self._is_full else SubmitError
            if isinstance(error, SbatchRateError):
                kind = QueueFullError if error.is_full else SubmitRateError
            raise kind(str(error), [job for job in jobs if job.attempt_id not in sent]) from None
        finally:
            if requests.submitted_at != before:
                self._poll_interval_s = MIN_RECORD_POLL_INTERVAL_S
                self._next_poll = self._clock() + MIN_RECORD_POLL_INTERVAL_S

    def _excluded(self, failed_nodes: Sequence[str] = ()) -> list[str]:
        """Return the nodes to exclude: the globally excluded nodes and, if other nodes remain, `failed_nodes`."""
        globally = list(dict.fromkeys([*self._nodes.excluded, *self._unhealthy_nodes]))
        globally = globally[: max(0, self._num_nodes - 1)]
        combined = list(dict.fromkeys([*globally, *failed_nodes]))
        return combined if len(combined) < self._num_nodes else globally

    def nodes_by_attempt(self) -> dict[str, str]:
        """Map the submitted ID of each started attempt to its node."""
        return {
            submitted: job.state.node
            for job in self._queue.jobs.values()
            if job.state.node
            for submitted in job.current
        }

    def has_other_nodes(self, nodes: Collection[str]) -> bool:
        """Return whether the partition has nodes outside `nodes` that are not excluded."""
        return len({*nodes, *self._nodes.excluded}) < self._num_nodes

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Exclude these nodes from new and waiting jobs."""
        self._unhealthy_nodes = list(nodes)
        self._exclude_from_waiting()

    def terminate(self, attempt_id: str, reason: str) -> bool:
        """Stop watching a stale attempt, and cancel its job if it runs nothing else."""
        for job in list(self._queue.jobs.values()):
            if attempt_id in job.current:
                del job.current[attempt_id]
                job.packs = [pack for pack in job.packs if pack.attempt_id != attempt_id]
                if not job.packs:
                    with suppress(SlurmError):
                        cancel_jobs([job.job_id])
                    self._forget(job)
        return False

    def _profile_within_limits(self) -> Profile:
        """Return the profile with parallel jobs bounded by the submit limit. A limit also rules out very short jobs."""
        max_jobs = self.quota.max_jobs
        if max_jobs is None:
            return self.profile
        return replace(
            self.profile,
            array_parallelism=min(max_jobs, self.profile.array_parallelism or max_jobs),
            job_min=max(self.profile.job_min, MIN_JOB_MINUTES),  # fewer jobs need fewer calls of sbatch
        )

    def _alive(self) -> list[str]:
        return [job_id for job_id, job in self._queue.jobs.items() if not self._queue.is_over(job)]

    def running(self) -> dict[str, str]:
        """Map the submitted ID of each started attempt to the ID of its current attempt."""
        return {submitted: now for job in self._queue.jobs.values() for submitted, now in job.current.items()}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s`, poll the queue if due, and return the attempts that ended."""
        time.sleep(timeout_s)
        if not self._queue.jobs or self._clock() < self._next_poll:
            return []
        before = self._queue.states()
        is_new = self._clock() - self._queue.requests.submitted_at < EARLY_END_S
        has_overdue = self._queue.has_overdue(60 * self.profile.walltime_min)
        self._queue.poll_if_due(is_news_due=is_new or self._outcomes.any_interrupted or has_overdue)
        started = time_outside_slurm()
        ends = self._collect_ends()
        if ends or before != self._queue.states():
            self._poll_interval_s = MIN_RECORD_POLL_INTERVAL_S
        else:
            self._poll_interval_s = min(
                MAX_REMOTE_RECORD_POLL_INTERVAL_S if self.store.uses_requests else MAX_RECORD_POLL_INTERVAL_S,
                self._poll_interval_s * 1.3,
            )
        self._next_poll = self._clock() + max(
            self._poll_interval_s, POLL_BACKOFF_FACTOR * (time_outside_slurm() - started)
        )
        return ends

    def _collect_ends(self) -> list[AttemptEnd]:
        """Return the attempts that ended according to their records and the last answer of the controller."""
        ends = []
        self._queue.read_failed_starts()
        self._outcomes.refresh(self._queue.jobs.values())
        for job in list(self._queue.jobs.values()):
            is_over, is_settled = self._queue.is_over(job), self._queue.is_settled(job)
            ends += self._outcomes.pop_ended(job, self.profile.slots, is_over=is_over, is_settled=is_settled)
            if self._queue.is_away:
                ends += self._outcomes.pop_committed(job)
            if not job.packs:
                self._forget(job)
        for record in [end.record for end in ends if end.record is not None]:
            self._pack_s.append(max(0.0, (record["ended_at"] or record["heartbeat_at"]) - record["started_at"]))
        self._exclude_from_waiting()
        if self._nodes.starts_nowhere({job.state.node for job in self._queue.jobs.values() if job.is_running}):
            ends = [
                replace(end, kind=FailureKind.FAILED_TO_START_ANYWHERE) if end.kind is FailureKind.NOT_BEGUN else end
                for end in ends
            ]
        self._log_job_states()
        earlier, self._outcomes.earlier_ends = self._outcomes.earlier_ends, []
        return [*earlier, *ends]

    def _log_job_states(self) -> None:
        """Log unusual reasons why jobs wait, overdue and ending jobs, and ended jobs whose records are not visible yet."""
        jobs = self._queue.jobs.values()
        for reason, count in self.waiting_reasons().items():
            if reason not in ORDINARY_REASONS:
                log_event("job", f"waiting: {wait_text(reason)}", count=count, is_state=True)
        if suspended := [job.state.node for job in jobs if job.state.state == "SUSPENDED"]:
            nodes = ", ".join(sorted(set(suspended)))
            log_event("job", "suspended until SLURM resumes them", count=len(suspended), where=nodes, is_state=True)
        self._log_restarts()
        # An earlier launch may have submitted adopted jobs with another cluster file.
        overdue = [
            job
            for job in self._queue.overdue(60 * self.profile.walltime_min)
            if self._adopted.keys().isdisjoint(pack.attempt_id for pack in job.packs)
        ]
        for node, count in Counter(job.state.node for job in overdue).items():
            limit = f"over the time limit of {self.profile.walltime_min} min and about to be killed"
            advice = "Increase walltime_min, or save checkpoints in the task"
            log_event("job", f"{limit}. {advice}", count=count, where=node, is_state=True)
        overdue_ids = {job.job_id for job in overdue}
        ending = [job.state for job in jobs if job.state.state == "COMPLETING" and job.job_id not in overdue_ids]
        for (node, reason), count in Counter((state.node, state.reason) for state in ending).items():
            if reason in PROBABLE_CAUSES:
                message = f"ending: {reason} (probably {PROBABLE_CAUSES[reason]})"
                log_event("job", message, count=count, where=node, is_state=True)
        ended = Counter((job.state.node, job.state.state) for job in jobs if self._queue.is_over(job) and job.packs)
        for (node, state), count in ended.items():
            cause = f" (probably {PROBABLE_CAUSES[state]})" if state in PROBABLE_CAUSES else ""
            message = f"ended as {state}{cause}, waiting up to {self.profile.grace_s:.0f} s for its records"
            log_event("job", message, count=count, where=node, is_state=True)

    def _log_restarts(self) -> None:
        """Log the jobs that SLURM has requeued, with the cause from the accounting."""
        restarted, self._queue.restarted = self._queue.restarted, []
        starts: dict[str, list[JobState]] = {}
        with suppress(SlurmError):
            starts = earlier_starts(job_id for job_id, _ in restarted) if restarted else {}
        for job_id, node in restarted:
            state = starts[job_id][-1].state if starts.get(job_id) else "REQUEUED"
            log_event(
                "job", f"{RESTARTS.get(state, RESTARTS['REQUEUED'])} and resuming from their checkpoints", where=node
            )

    def waiting_reasons(self) -> Counter[str]:
        """Return the reasons why submitted jobs wait, each with its number of jobs."""
        reasons = Counter(job.state.reason for job in self._queue.jobs.values() if job.is_waiting)
        return Counter({reason: count for reason, count in reasons.items() if reason not in ("", "None")})

    def _exclude_from_waiting(self) -> None:
        """Update the excluded nodes of waiting jobs after a change."""
        if (excluded := self._excluded()) == self._excluded_from_waiting or self._queue.is_away:
            return
        self._excluded_from_waiting = excluded
        for array in sorted({parse_array_id(job_id) for job_id, job in self._queue.jobs.items() if job.is_waiting}):
            nodes = self._excluded(self._failed_nodes_by_array.get(array, ()))
            exclude_nodes([array], sorted({*self.profile.exclude, *nodes}))

    def _forget(self, job: WatchedJob) -> None:
        del self._queue.jobs[job.job_id]
        if not any(other.submission is job.submission for other in self._queue.jobs.values()):
            try:
                self._delete_submission(job.submission)
            except OSError as error:
                log.warning("cannot delete the finished submission %s: %s", job.submission.name, error)

    def stop(self) -> None:
        """Do nothing: the jobs keep running, and the next launch adopts them."""

    def cancel_waiting(self) -> None:
        """Cancel waiting jobs only."""
        waiting = [job for job in self._queue.jobs.values() if job.is_waiting]
        try:
            cancel_jobs([job.job_id for job in waiting])
        except SlurmError as error:
            log.warning("cannot cancel the waiting jobs: %s", error)
            return
        for job in waiting:
            self._forget(job)

    def close(self) -> None:
        """Clean up after finished jobs. Unfinished jobs keep running (see `stop`)."""
        with suppress(StoreError, OSError):
            self._forget_finished_jobs()
            remove_finished_folders(self.store, self.sweep, self._folders)
