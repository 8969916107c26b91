"""Packs as SLURM job arrays: bundle, submit, watch with one query a look, and tell the driver how each pack ended.

A job goes on without us, and the next launch goes on from it.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.attempt import new_attempt_id
from depthrate.orchestrator.executors.executor import Executor, JobEnd, PackJob, SubmitError
from depthrate.orchestrator.executors.machine import USABLE_SHARE
from depthrate.orchestrator.executors.slurm_bundles import GUESSED_PARALLEL, bundle, share_of_slots_used
from depthrate.orchestrator.executors.slurm_ends import CancelledEnds, PackEnds
from depthrate.orchestrator.executors.slurm_job import run_bundle
from depthrate.orchestrator.executors.slurm_lanes import Lanes
from depthrate.orchestrator.executors.slurm_nodes import NodeCounts
from depthrate.orchestrator.executors.slurm_queue import JobQueue, WatchedJob, array_of
from depthrate.orchestrator.executors.slurm_submissions import Submission, SubmittedPack, is_alive, jobs_folder
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.states import JobState, squeue_states
from depthrate.slurm.submit import batch_script, cancel_jobs, submit_array
from depthrate.slurm.waiting import exclude_nodes
from depthrate.storage.cache import SnapshotCache
from depthrate.storage.snapshot import take_snapshot
from depthrate.storage.states import FailureKind
from depthrate.storage.store import Store, StoreError

if TYPE_CHECKING:
    from depthrate.orchestrator.executors.executor import Estimate
    from depthrate.orchestrator.plan import Plan
    from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
SOONEST_S, LATEST_S = 2.0, 60.0
"""Between two looks at the queue: soon after something changed, ever more seldom while nothing does."""
CLOSING_LOOKS = 8
"""How often, a second apart, the last jobs are looked for before the folders of those that still end are left behind."""


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
    ):
        self.profile, self.limits, self.store, self.sweep, self.device = profile, limits, store, sweep, device
        self.workers = (profile.array_parallelism or GUESSED_PARALLEL) * profile.slots
        worker_gb = profile.worker_mem_gb(device)
        self.memory_bytes = None if worker_gb is None else USABLE_SHARE * worker_gb * 2**30
        self._clock = clock
        self._queue = JobQueue(clock, profile.grace_s)
        self._nodes = NodeCounts(limits.partition_of(profile).nodes)
        self._ends = PackEnds(store, sweep, self._nodes, profile)
        self._cancelled = CancelledEnds(clock)
        self._finished = _FinishedFolders(store)
        self._lanes = Lanes(profile.array_parallelism)
        self._adopted: dict[str, tuple[str, list[str]]] = {}
        self._adopted_codes: dict[str, str | None] = {}
        self._over: list[Submission] = []
        """Submissions of earlier launches that are over and still on the books."""
        self._next_look = float("-inf")
        self._pause_s = SOONEST_S

    @property
    def submitted(self) -> dict[str, tuple[str, list[str]]]:
        """Attempt -> (pack, trials) of what earlier launches submitted and is still on its way."""
        return self._adopted

    @property
    def submitted_codes(self) -> dict[str, str | None]:
        """Attempt -> version of the task's code, where that is known."""
        return self._adopted_codes

    def check(self, plan: Plan, estimate_s: Estimate) -> None:
        """Refuse what exceeds a limit of the cluster.

        Raises:
            SlurmError: naming the limit.
        """
        self.limits.check(self.profile, len(self._bundles(plan, estimate_s)))

    def sentence(self) -> str:
        """Say which cluster and what each job asks for."""
        profile, partition = self.profile, self.limits.partition_of(self.profile)
        asked = f"{profile.gpus} GPUs, " if profile.gpus else ""
        asked += f"{profile.cpus} CPUs, {profile.mem_gb:g} GB, {profile.walltime_min} min"
        text = f"SLURM cluster {self.limits.cluster}, partition {partition.name}; each job: {asked}; packs on {self.device}"
        return text + (f"; {len(self._adopted)} packs are already there" if self._adopted else "")

    def details(self, plan: Plan, estimate_s: Estimate) -> dict[str, Any]:
        """Return the jobs, the cost in job-hours, how full they are, and the batch script."""
        bundles = self._bundles(plan, estimate_s)
        seconds = [estimate_s(pack) for pack in plan.packs]
        hours = None if None in seconds else sum(s for s in seconds if s) / 3600 / self.profile.slots
        per_array = min(len(bundles), self.limits.array_size)
        folder = jobs_folder(self.profile, self.store, self.sweep)
        return {
            "jobs": len(bundles),
            "arrays": -(-len(bundles) // self.limits.array_size),
            "already_submitted": len(self._adopted),
            "estimated_job_hours": hours,
            "gpu_hours": None if hours is None else hours * self.profile.gpus,
            "share_of_slots_used": share_of_slots_used(plan.packs, seconds, self.profile),
            "batch_script": batch_script(self.profile, f"depthrate-{self.sweep}", per_array, folder) if bundles else "",
        }

    def _bundles(self, plan: Plan, estimate_s: Estimate) -> list[list[Pack]]:
        return bundle(plan.packs, [estimate_s(pack) for pack in plan.packs], self.profile)

    def adopt(self, submissions: Sequence[Submission], states: dict[str, JobState]) -> None:
        """Watch the jobs of earlier launches that are not over; those that are leave the books when this is used.

        Packs that are committed need nobody to watch them, though their job still runs others.
        """
        committed = self._committed() if any(is_alive(state) for state in states.values()) else set()
        for submission in reversed(submissions):  # a trial that was submitted again is where it was last
            if submission.is_launch:
                continue
            for job_id, packs in submission.jobs():
                left = [pack for pack in packs if not committed.issuperset(pack.trial_ids)]
                if left and is_alive(states.get(job_id)):
                    self._queue.jobs[job_id] = WatchedJob(job_id, submission, left, states[job_id])
                    self._adopted |= {pack.attempt_id: (pack.pack_id, pack.trial_ids) for pack in left}
                    self._adopted_codes |= {pack.attempt_id: pack.code_hash for pack in left}
            is_watched = any(job.submission is submission for job in self._queue.jobs.values())
            if not is_watched and submission.job_ids:
                self._over.append(submission)
        for submission in submissions:
            if alive := [job_id for job_id in submission.job_ids if is_alive(states.get(job_id))]:
                self._lanes.bounded(self.profile, len(alive), alive=self._alive())
                self._lanes.take(alive)

    def _strike_off_what_is_over(self) -> None:
        """Take what earlier launches left off the books: not in `adopt`, since to plan is to look only."""
        while self._over:
            self._finished.strike_off(self._over.pop())

    def _committed(self) -> set[str]:
        """Return what is committed; nothing if the store does not answer, which costs a look."""
        try:
            return take_snapshot(self.store).trial_ids()
        except (OSError, StoreError):
            return set()

    def submit(self, jobs: Sequence[PackJob]) -> None:
        """Submit packs as arrays, none longer than the cluster allows.

        Raises:
            SubmitError: sbatch refused.
        """
        self._strike_off_what_is_over()
        bundles = bundle(jobs, [job.estimated_s for job in jobs], self.profile)
        for start in range(0, len(bundles), self.limits.array_size):
            try:
                self._submit_array(bundles[start : start + self.limits.array_size])
            except SlurmError as error:
                raise SubmitError(str(error), [job for each in bundles[start:] for job in each]) from None
        self._pause_s = SOONEST_S
        self._next_look = self._clock() + SOONEST_S

    def _submit_array(self, bundles: list[list[PackJob]]) -> None:
        name = f"depthrate-{self.sweep}-{new_attempt_id()}"
        folder = jobs_folder(self.profile, self.store, self.sweep) / name
        packs = [
            [SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids, job.options.code_hash) for job in each]
            for each in bundles
        ]
        submission = Submission(name, self.sweep, self.limits.cluster, str(folder), packs)
        submission.write(self.store)  # first, so that a job can always be found again by its name
        try:
            arguments = [[job.to_json() for job in each] for each in bundles]
            excluded = self._nodes.excluded
            profile = self._lanes.bounded(self.profile, len(bundles), self._alive())
            submission.job_ids = submit_array(profile, name, folder, run_bundle, arguments, excluded)
        except SlurmError:
            submission.delete(self.store)
            raise
        submission.write(self.store)
        self._lanes.take(submission.job_ids)
        for job_id, members in submission.jobs():
            self._queue.jobs[job_id] = WatchedJob(job_id, submission, list(members))

    def _alive(self) -> list[str]:
        return [job_id for job_id, job in self._queue.jobs.items() if not self._queue.is_over(job)]

    def running(self) -> dict[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""
        return {given: now for job in self._queue.jobs.values() for given, now in job.current.items()}

    def poll(self, timeout_s: float) -> list[JobEnd]:
        """Wait up to `timeout_s`, look at the queue if it is time, and return the packs that ended."""
        time.sleep(timeout_s)
        if not (self._queue.jobs or self._cancelled) or self._clock() < self._next_look:
            return []
        before = self._queue.states()
        ends = self._look()
        if ends or before != self._queue.states():
            self._pause_s = SOONEST_S
        else:
            self._pause_s = min(LATEST_S, self._pause_s * 1.3)
        self._next_look = self._clock() + self._pause_s
        return ends

    def _look(self) -> list[JobEnd]:
        if not self._queue.look():
            return []
        ends = []
        self._ends.look_again()
        avoided = list(self._nodes.excluded)
        for job in list(self._queue.jobs.values()):
            is_over, is_settled = self._queue.is_over(job), self._queue.is_settled(job)
            ends += self._ends.take_ended(job, self.profile.slots, is_over=is_over, is_settled=is_settled)
            if not job.packs:
                self._forget(job)
        if self._nodes.excluded != avoided:
            self._keep_away()
        if self._nodes.begins_nowhere({job.state.node for job in self._queue.jobs.values() if job.is_running}):
            ends = [_nowhere(end) for end in ends]
        return self._cancelled.hold(ends, jobs_left=bool(self._alive()))

    def _keep_away(self) -> None:
        """Keep the jobs that wait away from the nodes that only fail."""
        arrays = sorted({array_of(job_id) for job_id, job in self._queue.jobs.items() if job.is_waiting})
        exclude_nodes(arrays, sorted({*self.profile.exclude, *self._nodes.excluded}))

    def _forget(self, job: WatchedJob) -> None:
        del self._queue.jobs[job.job_id]
        if not any(other.submission is job.submission for other in self._queue.jobs.values()):
            try:
                self._finished.strike_off(job.submission)
            except OSError as error:
                log.warning("%s is over but cannot be taken off the books: %s", job.submission.name, error)

    def stop(self) -> None:
        """Do nothing: the jobs go on, and the next launch goes on from them."""

    def withdraw(self) -> None:
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
        with suppress(SlurmError, OSError):
            self._strike_off_what_is_over()
            for look in range(CLOSING_LOOKS):
                if arrays := self._finished.arrays():
                    time.sleep(min(look, 1))  # a job ends a moment after its last commit
                    self._finished.remove(squeue_states(arrays))


def _nowhere(end: JobEnd) -> JobEnd:
    return replace(end, kind=FailureKind.BEGINS_NOWHERE) if end.kind is FailureKind.NOT_BEGUN else end


class _FinishedFolders:
    """The folders of submissions that are over; those go of which all packs were done, the others may say why not."""

    def __init__(self, store: Store):
        self._store = store
        self._cache = SnapshotCache()
        self._done: list[Submission] = []

    def strike_off(self, submission: Submission) -> None:
        """Take a submission off the books, and note its folder if all its packs were done."""
        submission.delete(self._store)
        try:
            committed = take_snapshot(self._store, cache=self._cache).trial_ids()
        except StoreError:
            return
        if all(committed.issuperset(pack.trial_ids) for packs in submission.packs for pack in packs):
            self._done.append(submission)

    def arrays(self) -> list[str]:
        """Return the arrays whose folders are to be removed."""
        return sorted({array_of(each.job_ids[0]) for each in self._done})

    def remove(self, states: dict[str, JobState]) -> None:
        """Remove them, but for those into which a job still writes its end."""
        alive = {job_id for job_id, state in states.items() if is_alive(state)}
        for submission in [each for each in self._done if alive.isdisjoint(each.job_ids)]:
            shutil.rmtree(Path(submission.folder), ignore_errors=True)
            self._done.remove(submission)
