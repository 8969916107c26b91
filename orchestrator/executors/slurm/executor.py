"""Packs as SLURM job arrays: bundle, submit, watch with one query a look, and tell the driver how each pack ended.

A job goes on without us, and the next launch goes on from it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import (
    AttemptEnd,
    AttemptSpec,
    Executor,
    LaunchJob,
    QueueFullError,
    SubmitError,
    SubmitRateError,
)
from depthrate.orchestrator.executors.machine import USABLE_SHARE
from depthrate.orchestrator.executors.slurm.folders import remove_finished_folders
from depthrate.orchestrator.executors.slurm.outcomes import PackOutcomes
from depthrate.orchestrator.executors.slurm.queue import JobQueue, WatchedJob
from depthrate.orchestrator.executors.slurm.submissions import (
    PLANNED_JOB_NAME,
    Submission,
    is_alive,
    jobs_folder,
    jobs_of_sweep,
)
from depthrate.orchestrator.executors.slurm.submitter import (
    GUESSED_PARALLEL,
    ConcurrencySlots,
    SbatchRateError,
    SubmitQuota,
    Submitter,
    bundle,
    held_s,
    share_of_slots_used,
)
from depthrate.orchestrator.launch.events import log_event
from depthrate.slurm.cluster_limits import JobGroup, Limits, SubmitLimits
from depthrate.slurm.command import CALLS, SlurmError, ignored_variables_message, time_outside_slurm
from depthrate.slurm.job_states import JobState, parse_array_id
from depthrate.slurm.profile import Profile, expiring_keys_message
from depthrate.slurm.script import batch_script
from depthrate.slurm.submit import SubmitLimitError, cancel_jobs
from depthrate.slurm.waiting import exclude_nodes
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import FailureKind

if TYPE_CHECKING:
    from depthrate.orchestrator.executors.base import Estimate
    from depthrate.orchestrator.executors.options import JobOptions
    from depthrate.orchestrator.executors.slurm.remote_launch import Supervisor
    from depthrate.storage.attempts.records import Record
    from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
MIN_RECORD_POLL_INTERVAL_S, MAX_RECORD_POLL_INTERVAL_S, MAX_REMOTE_RECORD_POLL_INTERVAL_S = 2.0, 5.0, 15.0
"""Between two looks at what jobs wrote, in a folder or in a bucket: soon after something changed, ever more seldom while
nothing does. Whether the queue is looked at with it is for the budget of requests to say."""
WAITS_FOR = dict.fromkeys(
    ("PartitionDown", "PartitionInactive"),
    "they start when the site has it up again; else cancel, and name another partition",
)
"""Reason why jobs wait -> what to expect, or to do."""
REMEDIES = {"OUT_OF_MEMORY": "mem_gb was too small", "OutOfMemory": "mem_gb was too small"}
REMEDIES |= dict.fromkeys(("TIMEOUT", "TimeLimit"), "walltime_min was too short")
"""State, or reason of a job that is being ended -> what may have to be changed, said before it is known what a job has left."""
SHORTEST_MIN = 1.0
"""A job's minutes of packs at least, where the cluster takes fewer jobs than there are packs."""
SETTLES_S = 18.0
"""How soon after a submission most of what is wrong with jobs shows: they cannot begin, or end in their first seconds."""
POLL_BACKOFF_FACTOR = 20
"""Reading the store for a second, at thousands of records, is not done again for so many."""
ORDINARY_REASONS = ("", "None", "Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime")
"""Why jobs wait that need nobody to do anything."""
PACKS_KEPT = 32
CANCEL_TIMEOUT_S = 8
"""How long a job that was cancelled may take to leave the queue."""


class SlurmExecutor(Executor):
    """Jobs on a SLURM cluster, and those of earlier launches that it still has."""

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
        supervisor: Supervisor | None = None,
        submit_limits: SubmitLimits | None = None,
    ):
        self.profile, self.limits, self.store, self.sweep, self.device = profile, limits, store, sweep, device
        self.workers = (profile.array_parallelism or GUESSED_PARALLEL) * profile.slots
        worker_gb = profile.worker_mem_gb(device)
        self.memory_bytes = None if worker_gb is None else USABLE_SHARE * worker_gb * 2**30
        self.gpu_share = 1 / profile.packs_per_gpu
        self._clock = clock
        self._supervisor = supervisor
        """Sends the launch away where it must stay."""
        self._queue = JobQueue(clock, profile.grace_s, profile.poll_s)
        self.room = SubmitQuota(submit_limits or SubmitLimits(), clock, self._queue.requests.note_count)
        self.num_nodes = self._num_nodes = limits.partition_of(profile).nodes
        self._nodes = StartFailures(self._num_nodes)
        self._unhealthy_nodes: list[str] = []
        """Nodes that the driver avoids."""
        self._kept_away: list[str] = []
        self._avoided_by_array: dict[str, list[str]] = {}
        """Array -> nodes on which its packs have failed."""
        self._ends = PackOutcomes(store, sweep, self._nodes, profile)
        self._folders = {jobs_folder(profile, store, sweep)}
        """Where folders of jobs may lie that are over."""
        self._lanes = ConcurrencySlots(profile.array_parallelism)
        self._adopted: dict[str, tuple[str, list[str]]] = {}
        self._adopted_codes: dict[str, str | None] = {}
        self._over: list[Submission] = []
        """Submissions of earlier launches that are over and still on the books."""
        self._pack_s: deque[float] = deque(maxlen=PACKS_KEPT)
        """Seconds that packs took which ended, the last of them."""
        self._is_full = False
        """Whether there was no room for all jobs when some were last submitted."""
        self._refusal = ""
        """How that was said."""
        self._next_look = float("-inf")
        self._pause_s = MIN_RECORD_POLL_INTERVAL_S
        self._outbox = Submitter(profile, limits, store, sweep, self.room, self._lanes, self._queue.requests)

    def scheduler_calls(self) -> dict[str, int]:
        """Return how often each of SLURM's commands was called."""
        return dict(CALLS)

    def max_parallel(self, packs: int) -> int:
        """Return how many of so many packs may run at the same moment: without a bound on jobs, all."""
        return min(packs, self.workers) if self.profile.array_parallelism else packs

    @property
    def submitted(self) -> dict[str, tuple[str, list[str]]]:
        """Attempt -> (pack, trials) of what earlier launches submitted and is still on its way."""
        return self._adopted

    @property
    def submitted_codes(self) -> dict[str, str | None]:
        """Attempt -> version of the task's code, where that is known."""
        return self._adopted_codes

    def check(self, packs: Sequence[Pack], estimate_s: Estimate) -> None:
        """Refuse what exceeds a limit of the cluster.

        Raises:
            SlurmError: naming the limit.
        """
        self.limits.check(self.profile, len(self._bundles(packs, estimate_s)))

    def summary(self) -> str:
        """Say which cluster and what each job asks for."""
        profile, partition = self.profile, self.limits.partition_of(self.profile)
        asked = f"{profile.resources_text()}, {profile.walltime_min} min"
        where = profile.partition or partition.name
        text = f"SLURM cluster {self.limits.cluster}, partition {where}; each job: {asked}; packs on {self.device}"
        text += f"; {counted(len(self._adopted), 'pack is', 'packs are')} already there" if self._adopted else ""
        return "; ".join([text, *filter(None, (ignored_variables_message(), expiring_keys_message(profile)))])

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return the jobs, the cost in job-hours, how full they are, and the batch script."""
        bundles = self._bundles(packs, estimate_s)
        seconds = [estimate_s(pack) for pack in packs]
        held = held_s(packs, seconds, self._profile_within_limits())
        hours = None if held is None else sum(held) / 3600
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
        """Watch the jobs of earlier launches that are not over; those that are leave the books when this is used.

        Packs that are committed need nobody to watch them, though their job still runs others.
        """
        committed = self._committed() if any(is_alive(state) for state in states.values()) else set()
        for submission in reversed(submissions):  # a trial that was submitted again is where it was last
            if submission.is_launch:
                if submission.job_ids and not any(is_alive(states.get(job_id)) for job_id in submission.job_ids):
                    self._over.append(submission)
                continue
            for job_id, packs in submission.jobs():
                left = [pack for pack in packs if not committed.issuperset(pack.trial_ids)]
                if left and is_alive(states.get(job_id)):
                    self._queue.jobs[job_id] = WatchedJob(job_id, submission, left, states[job_id])
                    self._adopted |= {pack.attempt_id: (pack.pack_id, pack.trial_ids) for pack in left}
                    self._adopted_codes |= {pack.attempt_id: pack.code_hash for pack in left}
            is_watched = any(job.submission is submission for job in self._queue.jobs.values())
            if not is_watched and (submission.job_ids or submission.was_never_accepted(time.time())):
                self._over.append(submission)
        for submission in submissions:
            if alive := [job_id for job_id in submission.job_ids if is_alive(states.get(job_id))]:
                self._lanes.bounded(self.profile, len(alive), alive=self._alive())
                self._lanes.take(alive)

    def _forget_finished_jobs(self) -> None:
        """Take what earlier launches left off the books: not in `adopt`, since to plan is to look only."""
        while self._over:
            self._strike_off(self._over.pop())

    def _strike_off(self, submission: Submission) -> None:
        submission.delete(self.store)
        self._folders.add(Path(submission.folder).parent)

    def _committed(self) -> set[str]:
        """Return what is committed; nothing if the store does not answer, which costs a look."""
        try:
            return take_snapshot(self.store).trial_ids()
        except (OSError, StoreError):
            return set()

    def supervise(self, packs: Sequence[Pack], estimate_s: Estimate, options: JobOptions) -> LaunchJob | None:
        """Send the launch away as a small job, if there are more jobs to submit than the cluster takes now.

        Raises:
            SubmitError: it takes not even that one.
        """
        try:
            room = self.room.left(len(self._alive()))
            if self._supervisor is None or room is None or len(self._bundles(packs, estimate_s)) <= room:
                return None
            try:
                return self._supervisor.send_launch(options)
            except SubmitLimitError:
                self._cancel_newest_job()
                return self._supervisor.send_launch(options)
        except SlurmError as error:
            raise SubmitError(f"the job that would submit the others cannot be submitted: {error}", []) from None

    def _cancel_newest_job(self) -> None:
        """Cancel the job that this launch submitted last, whose packs are then pending again."""
        if self._queue.jobs:
            there = JobGroup().count().total()
            cancel_jobs([self._queue.jobs.popitem()[0]])
            for _ in range(CANCEL_TIMEOUT_S):
                if JobGroup().count().total() < there:
                    break
                time.sleep(1)

    def adopt_submitted(self) -> dict[str, tuple[str, list[str]]]:
        """Watch what another launch has submitted since this one began; nothing while the controller is away."""
        before, watched = set(self._adopted), {job.submission.name for job in self._queue.jobs.values()}
        try:
            submissions, states = jobs_of_sweep(self.store, self.sweep, self.limits.cluster)
        except SlurmError as error:
            log.warning("jobs of other launches are not known: %s", error)
            return {}
        self.adopt([submission for submission in submissions if submission.name not in watched], states)
        return {attempt_id: self._adopted[attempt_id] for attempt_id in self._adopted.keys() - before}

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Submit packs as arrays, none longer than the cluster allows.

        Raises:
            QueueFullError: those that are left wait for others to end, or until sbatch may be called again.
            SubmitError: sbatch refused.
        """
        self._forget_finished_jobs()
        if self._queue.is_away and self._queue.jobs:  # sbatch would wait for it, and nothing else be done meanwhile
            raise QueueFullError("SLURM's controller does not answer", jobs)
        requests = self._queue.requests
        if self._is_full and not requests.may_submit(is_full=True):
            raise QueueFullError(self._refusal, jobs)
        before = requests.submitted_at
        typical_s = median(self._pack_s) if self._pack_s else None
        sent: set[str] = set()
        self._is_full = False
        try:
            for avoid, members in self._by_avoided_nodes(jobs).items():
                seconds = [typical_s if job.estimated_s is None else job.estimated_s for job in members]
                bundles = bundle(members, seconds, self._profile_within_limits())
                for submission in self._outbox.submit(bundles, self._excluded(avoid), self._alive):
                    self._avoided_by_array |= {
                        parse_array_id(job_id): list(avoid) for job_id in submission.job_ids if avoid
                    }
                    for job_id, packs in submission.jobs():
                        self._queue.jobs[job_id] = WatchedJob(job_id, submission, list(packs))
                        sent |= {pack.attempt_id for pack in packs}
        except OSError as error:  # a full store: what is not on the books is not submitted
            left = [job for job in jobs if job.attempt_id not in sent]
            raise QueueFullError(f"the store takes nothing: {error}", left) from None
        except SlurmError as error:
            self._is_full, self._refusal = isinstance(error, SubmitLimitError), str(error)
            kind: type[SubmitError] = QueueFullError if self._is_full else SubmitError
            if isinstance(error, SbatchRateError):
                kind = QueueFullError if error.is_full else SubmitRateError
            raise kind(str(error), [job for job in jobs if job.attempt_id not in sent]) from None
        finally:
            if requests.submitted_at != before:
                self._pause_s = MIN_RECORD_POLL_INTERVAL_S
                self._next_look = self._clock() + MIN_RECORD_POLL_INTERVAL_S

    @staticmethod
    def _by_avoided_nodes(jobs: Sequence[AttemptSpec]) -> dict[tuple[str, ...], list[AttemptSpec]]:
        """Return nodes -> packs that have failed on them and go elsewhere; those that have not failed first."""
        groups: dict[tuple[str, ...], list[AttemptSpec]] = {}
        for job in sorted(jobs, key=lambda job: bool(job.avoid)):
            groups.setdefault(tuple(job.avoid), []).append(job)
        return groups

    def _excluded(self, avoid: Sequence[str] = ()) -> list[str]:
        """Return the nodes that jobs are kept away from; those on which their packs failed too, unless none would be left."""
        everybodys = list(dict.fromkeys([*self._nodes.excluded, *self._unhealthy_nodes]))
        everybodys = everybodys[: max(0, self._num_nodes - 1)]
        those = list(dict.fromkeys([*everybodys, *avoid]))
        return those if len({*those, *self.profile.exclude}) < self._num_nodes else everybodys

    def nodes_by_attempt(self) -> dict[str, str]:
        """Return attempt, as submitted -> the node that it runs on, of those that have started."""
        return {given: job.state.node for job in self._queue.jobs.values() if job.state.node for given in job.current}

    def has_other_nodes(self, nodes: Collection[str]) -> bool:
        """Whether the partition has nodes that are neither among these nor excluded."""
        return len({*nodes, *self._nodes.excluded, *self.profile.exclude}) < self._num_nodes

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Submit nothing more to these nodes, and keep what waits away from them."""
        self._unhealthy_nodes = list(nodes)
        self._exclude_from_waiting()

    def terminate(self, attempt_id: str, why: str) -> bool:
        """Wait for a silent attempt no more; where its job runs nothing else, it is cancelled."""
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
        """Return the profile, with no more jobs at once than there may be; where not all may be there, none is very short."""
        most = self.room.most
        if most is None:
            return self.profile
        return replace(
            self.profile,
            array_parallelism=min(most, self.profile.array_parallelism or most),
            job_min=max(self.profile.job_min, SHORTEST_MIN),  # else sbatch would be called for each of them
        )

    def _alive(self) -> list[str]:
        return [job_id for job_id, job in self._queue.jobs.items() if not self._queue.is_over(job)]

    def running(self) -> dict[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""
        return {given: now for job in self._queue.jobs.values() for given, now in job.current.items()}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s`, look at the queue if it is time, and return the packs that ended."""
        time.sleep(timeout_s)
        if not self._queue.jobs or self._clock() < self._next_look:
            return []
        before = self._queue.states()
        self._queue.poll_if_due(is_news_due=self._is_news_due())
        began = time_outside_slurm()
        ends = self._read_ends()
        if ends or before != self._queue.states():
            self._pause_s = MIN_RECORD_POLL_INTERVAL_S
        else:
            self._pause_s = min(
                MAX_RECORD_POLL_INTERVAL_S if self.store.is_local else MAX_REMOTE_RECORD_POLL_INTERVAL_S,
                self._pause_s * 1.3,
            )
        self._next_look = self._clock() + max(self._pause_s, POLL_BACKOFF_FACTOR * (time_outside_slurm() - began))
        return ends

    def _read_ends(self) -> list[AttemptEnd]:
        """Return the packs that ended: by the store, also while the controller is away, and by what it last answered."""
        ends = []
        self._ends.look_again(self._queue.jobs.values())
        for job in list(self._queue.jobs.values()):
            is_over, is_settled = self._queue.is_over(job), self._queue.is_settled(job)
            ends += self._ends.take_ended(job, self.profile.slots, is_over=is_over, is_settled=is_settled)
            if self._queue.is_away:
                ends += self._ends.take_committed(job)
            if not job.packs:
                self._forget(job)
        self._pack_s += [_ran_s(end.record) for end in ends if end.record is not None]
        self._exclude_from_waiting()
        if self._nodes.starts_nowhere({job.state.node for job in self._queue.jobs.values() if job.is_running}):
            ends = [_nowhere(end) for end in ends]
        self._note_states()
        earlier, self._ends.earlier_ends = self._ends.earlier_ends, []
        return [*earlier, *ends]

    def _is_news_due(self) -> bool:
        """Whether jobs may have changed: they were just submitted, have saved their state to end, or have had their time."""
        is_new = self._clock() - self._queue.requests.submitted_at < SETTLES_S
        return is_new or self._ends.any_told_to_end or self._queue.is_any_past(60 * self.profile.walltime_min)

    def _note_states(self) -> None:
        """Tell why jobs wait, where that is not only for their turn, and for which there is a wait for what they wrote."""
        jobs = self._queue.jobs.values()
        reasons = Counter(job.state.reason for job in jobs if job.is_waiting)
        for reason, count in reasons.items():
            if reason not in ORDINARY_REASONS:
                expect = f" ({WAITS_FOR[reason]})" if reason in WAITS_FOR else ""
                log_event("job", f"waiting: {reason}{expect}", count=count, is_state=True)
        past = [job for job in self._queue.overdue(60 * self.profile.walltime_min) if not self._is_adopted(job)]
        for node, count in Counter(job.state.node for job in past).items():
            limit = f"over the time limit of {self.profile.walltime_min} min and about to be ended"
            what = "a longer walltime_min is needed, or a task that saves checkpoints"
            log_event("job", f"{limit}: {what}", count=count, where=node, is_state=True)
        told = {job.job_id for job in past}
        ending = [job.state for job in jobs if job.state.state == "COMPLETING" and job.job_id not in told]
        for (node, reason), count in Counter((state.node, state.reason) for state in ending).items():
            if reason in REMEDIES:
                log_event(
                    "job", f"ends by {reason}, so perhaps {REMEDIES[reason]}", count=count, where=node, is_state=True
                )
        silent = Counter((job.state.node, job.state.state) for job in jobs if self._queue.is_over(job) and job.packs)
        for (node, state), count in silent.items():
            waits = f"last words are waited for, up to {self.profile.grace_s:.0f} s"
            remedy = f", so perhaps {REMEDIES[state]}" if state in REMEDIES else ""
            log_event("job", f"ended as {state}{remedy}; {waits}", count=count, where=node, is_state=True)

    def _is_adopted(self, job: WatchedJob) -> bool:
        """Whether an earlier launch submitted a job, perhaps by another cluster file."""
        return not self._adopted.keys().isdisjoint(pack.attempt_id for pack in job.packs)

    def _exclude_from_waiting(self) -> None:
        """Keep the jobs that wait away from the nodes that only fail, where these have changed."""
        if (excluded := self._excluded()) == self._kept_away or self._queue.is_away:
            return
        self._kept_away = excluded
        for array in sorted({parse_array_id(job_id) for job_id, job in self._queue.jobs.items() if job.is_waiting}):
            those = self._excluded(self._avoided_by_array.get(array, ()))
            exclude_nodes([array], sorted({*self.profile.exclude, *those}))

    def _forget(self, job: WatchedJob) -> None:
        self._queue.forget(job)
        if not any(other.submission is job.submission for other in self._queue.jobs.values()):
            try:
                self._strike_off(job.submission)
            except OSError as error:
                log.warning("%s is over but cannot be taken off the books: %s", job.submission.name, error)

    def stop(self) -> None:
        """Do nothing: the jobs go on, and the next launch goes on from them."""

    def cancel_waiting(self) -> None:
        """Cancel the jobs that wait; those that run go on."""
        waiting = [job for job in self._queue.jobs.values() if job.is_waiting]
        try:
            cancel_jobs([job.job_id for job in waiting])
        except SlurmError as error:
            log.warning("jobs that wait are not cancelled: %s", error)
            return
        for job in waiting:
            self._forget(job)

    def close(self) -> None:
        """Tidy up after the jobs that are over; the others go on, see `stop`."""
        with suppress(StoreError, OSError):
            self._forget_finished_jobs()
            remove_finished_folders(self.store, self.sweep, self._folders)


def _ran_s(record: Record) -> float:
    return max(0.0, (record["ended_at"] or record["heartbeat_at"]) - record["started_at"])


def _nowhere(end: AttemptEnd) -> AttemptEnd:
    return replace(end, kind=FailureKind.FAILED_TO_START_ANYWHERE) if end.kind is FailureKind.NOT_BEGUN else end
