"""Packs as SLURM job arrays: bundle, submit, watch with one query a look, and tell the driver how each pack ended.

A job goes on without us. What it did stands in the store; what the scheduler says only matters for packs whose attempt
has not written its own end, and a pack counts as lost only when its heartbeat has stopped too.
"""

from __future__ import annotations

import heapq
import logging
import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from depthrate.orchestrator.attempt import heartbeat_s, new_attempt_id, nth_attempt_id, read_attempt
from depthrate.orchestrator.executors.executor import JobEnd, PackJob, SubmitError
from depthrate.orchestrator.executors.slurm_job import run_bundle
from depthrate.orchestrator.executors.submissions import Submission, SubmittedPack
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.states import JobState, sacct_states, squeue_states
from depthrate.slurm.submit import submit_array
from depthrate.storage.cache import SnapshotCache
from depthrate.storage.snapshot import take_snapshot
from depthrate.storage.store import Store, StoreError

log = logging.getLogger("depthrate")
P = TypeVar("P")
SOONEST_S, LATEST_S = 2.0, 60.0
"""Between two looks at the queue: soon after something changed, ever more seldom while nothing does."""
SILENT_BEATS = 4
"""Heartbeats that a worker may miss before its silence counts."""
UNKNOWN_S = 20.0
"""How long a job may be unknown to squeue and sacct alike before its silence counts."""
CANCELLED_S = 12.0
"""After a job was cancelled, how long others have to follow before it is submitted again."""
CLOSING_LOOKS = 8
"""How often, a second apart, the last jobs are looked for before the folders of those that still end are left behind."""
GUESSED_PARALLEL = 16
"""Jobs that a cluster is taken to run at once where the profile does not say."""
BAD_NODE_AT = 3
"""Packs that a node must fail, with no pack done on it, before it is left out."""
_MEMORY = re.compile(r"oom[-_ ]?kill|exceeded .*memory limit|out of memory", re.IGNORECASE)


@dataclass
class _Job:
    """A job of an array, and its packs that have not ended."""

    job_id: str
    submission: Submission
    packs: list[SubmittedPack]
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    unknown_since: float | None = None
    has_begun: bool = False
    """Whether any of its packs has ever left a record."""
    current: dict[str, str] = field(default_factory=dict)
    """Attempt as submitted -> attempt that runs, of packs that have started."""


def bundle(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[list[P]]:
    """Put packs into jobs of about `job_min` minutes, the longest packs first and apart, as many jobs as may run at once.

    Where a cost is unknown all packs count alike, in four rounds of jobs: one that takes longer than its time limit goes on
    in the next, so nothing is lost by that.
    """
    at_once = (profile.array_parallelism or GUESSED_PARALLEL) * profile.slots
    length_s = 60 * min(profile.job_min, 0.8 * profile.walltime_min) * profile.slots
    costs_s = [cost_s for cost_s in seconds if cost_s is not None]
    if len(costs_s) < len(packs):
        costs_s, needed = [1.0] * len(packs), 4 * at_once
    else:
        needed = math.ceil(sum(costs_s) / max(length_s, 1e-9))
    count = len(packs) if length_s == 0 else min(len(packs), max(at_once, needed))
    heap = [(0.0, index) for index in range(count)]
    bundles: list[list[P]] = [[] for _ in range(count)]
    for pack, cost_s in sorted(zip(packs, costs_s, strict=True), key=lambda each: -each[1]):
        filled_s, index = heapq.heappop(heap)
        bundles[index].append(pack)
        heapq.heappush(heap, (filled_s + cost_s, index))
    return bundles


class SlurmExecutor:
    """Jobs on a SLURM cluster."""

    capacity = 1_000_000
    outlives_driver = True

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        store: Store,
        sweep: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.profile, self.limits, self.store, self.sweep = profile, limits, store, sweep
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._next_look = float("-inf")
        self._pause_s = SOONEST_S
        self._failed_on: Counter[str] = Counter()
        self._done_on: Counter[str] = Counter()
        self.excluded: list[str] = []
        """Nodes that failed too often."""
        self._is_deaf = False
        self._cache = SnapshotCache()
        self._spent: list[Submission] = []
        """Submissions whose packs are all done, and whose folders are still there."""
        self._over: list[Submission] = []
        """Submissions of earlier launches that are over and still on the books."""
        self._cancelled: list[JobEnd] = []
        self._cancelled_at = 0.0

    def adopt(self, submissions: Sequence[Submission], states: dict[str, JobState]) -> dict[str, tuple[str, list[str]]]:
        """Watch the jobs of earlier launches that are not over, and return attempt -> (pack, trials) of what they hold."""
        adopted: dict[str, tuple[str, list[str]]] = {}
        for submission in submissions:
            if not any(submission.packs):
                continue  # an allocation, whose packs its own launch has
            jobs = [(job_id, packs) for job_id, packs in submission.jobs() if is_alive(states.get(job_id))]
            for job_id, packs in jobs:
                self._jobs[job_id] = _Job(job_id, submission, list(packs), states[job_id])
                adopted |= {pack.attempt_id: (pack.pack_id, pack.trial_ids) for pack in packs}
            if not jobs and submission.job_ids:
                self._over.append(submission)
        return adopted

    def _strike_off_what_is_over(self) -> None:
        """Take what earlier launches left off the books: here, since to plan is to look only."""
        while self._over:
            self._strike_off(self._over.pop())

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
        self._look_soon()

    def _submit_array(self, bundles: list[list[PackJob]]) -> None:
        name = f"depthrate-{self.sweep}-{new_attempt_id()}"
        folder = jobs_folder(self.profile, self.store, self.sweep) / name
        packs = [[SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids) for job in each] for each in bundles]
        submission = Submission(name, self.sweep, self.limits.cluster, str(folder), packs)
        submission.write(self.store)  # first, so that a job can always be found again by its name
        try:
            arguments = [[job.to_json() for job in each] for each in bundles]
            submission.job_ids = submit_array(self.profile, name, folder, run_bundle, arguments, self.excluded)
        except SlurmError:
            submission.delete(self.store)
            raise
        submission.write(self.store)
        for job_id, members in submission.jobs():
            self._jobs[job_id] = _Job(job_id, submission, list(members))

    def running(self) -> dict[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""
        return {given: now for job in self._jobs.values() for given, now in job.current.items()}

    def poll(self, timeout_s: float) -> list[JobEnd]:
        """Wait up to `timeout_s`, look at the queue if it is time, and return the packs that ended."""
        time.sleep(timeout_s)
        if not (self._jobs or self._cancelled) or self._clock() < self._next_look:
            return []
        before = {job_id: job.state.state for job_id, job in self._jobs.items()}
        ends = self._look()
        if ends or before != {job_id: job.state.state for job_id, job in self._jobs.items()}:
            self._pause_s = SOONEST_S
        else:
            self._pause_s = min(LATEST_S, self._pause_s * 1.3)
        self._next_look = self._clock() + self._pause_s
        return ends

    def stop(self) -> None:
        """Do nothing: the jobs go on, and the next launch goes on from them."""

    def close(self) -> None:
        """Tidy up after the jobs that are over; the others go on, see `stop`."""
        with suppress(SlurmError, OSError):
            self._strike_off_what_is_over()
            for look in range(CLOSING_LOOKS):
                if self._spent:
                    time.sleep(min(look, 1))  # a job ends a moment after its last commit
                    arrays = sorted({each.job_ids[0].partition("_")[0] for each in self._spent})
                    self._remove_folders(squeue_states(arrays))

    def _look_soon(self) -> None:
        self._pause_s = SOONEST_S
        self._next_look = self._clock() + SOONEST_S

    def _look(self) -> list[JobEnd]:
        if not self._ask():
            return []
        ends = []
        for job in list(self._jobs.values()):
            ends += self._ended_packs(job)
            if not job.packs:
                self._forget(job)
        return self._hold_cancelled(ends)

    def _ask(self) -> bool:
        """Update the jobs' states and return whether the scheduler answered."""
        arrays = sorted({job_id.partition("_")[0] for job_id in self._jobs})
        try:
            states = squeue_states(arrays)
        except SlurmError as error:
            if not self._is_deaf:
                log.warning("the queue cannot be seen, jobs go on meanwhile: %s", error)
            self._is_deaf = True
            return False
        self._is_deaf = False
        missing = [job_id for job_id in self._jobs if job_id not in states]
        if missing:
            try:
                found = sacct_states(sorted({job_id.partition("_")[0] for job_id in missing}))
                # what the accounting still calls alive, the controller knows better: it has forgotten it
                states |= {
                    job_id: found[job_id] for job_id in missing if job_id in found and found[job_id].phase == "over"
                }
            except SlurmError as error:
                log.info("no accounting: %s", error)
        now = self._clock()
        for job_id, job in self._jobs.items():
            if job_id in states:
                known = states[job_id]
                restarts = job.state.restarts if known.restarts is None else known.restarts
                job.state = JobState(known.state, restarts, known.node or job.state.node, known.reason)
                job.unknown_since = None
            else:
                job.unknown_since = job.unknown_since or now
        return True

    def _ended_packs(self, job: _Job) -> list[JobEnd]:
        """Take the packs that ended out of a job, and return how."""
        is_over = job.state.phase == "over"
        if job.unknown_since is not None:
            is_over = self._clock() - job.unknown_since >= UNKNOWN_S
        if job.state.phase == "waiting" and not is_over:
            if job.state.restarts == 0:
                return []
            job.current.clear()
        ends: list[JobEnd] = []
        left = []
        for position, pack in enumerate(job.packs):
            if not is_over and position >= self.profile.slots + len(ends):
                left += job.packs[position:]  # packs run in order: these cannot have started
                break
            end = self._end_of(job, pack, is_over)
            if end is None:
                left.append(pack)
            else:
                ends.append(end)
                job.current.pop(pack.attempt_id, None)
        job.packs = left
        return ends

    def _end_of(self, job: _Job, pack: SubmittedPack, is_over: bool) -> JobEnd | None:
        attempt_id, record = self._newest_record(pack, job.state.restarts or 0)
        state = record.get("state")
        job.has_begun = job.has_begun or state is not None
        if state in ("done", "failed", "lost"):
            if state != "failed":  # an exception in the task is no node's doing
                self._count(job, state == "done")
            return JobEnd(pack.attempt_id, ran_as=attempt_id)
        if state == "interrupted" and is_over:
            by_hand = job.unknown_since is None and job.state.kind == "cancelled"
            if by_hand:
                return JobEnd(pack.attempt_id, f"job {job.job_id} was cancelled", "cancelled", attempt_id)
            got_nowhere = not record.get("checkpoints") and not record.get("trials_done")
            if got_nowhere and job.state.state in ("COMPLETED", "TIMEOUT"):
                how = f"job {job.job_id} had no time to save anything; a longer walltime_min is needed"
                return JobEnd(pack.attempt_id, how, "timeout", attempt_id)
            return JobEnd(pack.attempt_id, ran_as=attempt_id)
        if state is not None:
            job.current[pack.attempt_id] = attempt_id
        if not is_over:
            return None
        silent_s = time.time() - record.get("heartbeat_at", 0.0)
        if state == "running" and silent_s < SILENT_BEATS * heartbeat_s(self.store):
            return None  # the scheduler says it is over, its heartbeat says it is not
        how = (
            f"job {job.job_id} ended as {job.state.state}" if job.unknown_since is None else f"job {job.job_id} is gone"
        )
        how += f" on {job.state.node}" if job.state.node else ""
        printed = printed_by(job.submission, job.job_id)
        how += f": {_last_words(printed)}" if printed.strip() else ""
        kind = self._kind(job, printed)
        if state is None and job.has_begun and job.state.state in ("COMPLETED", "TIMEOUT") and kind != "out_of_memory":
            kind = "not_started"  # the job had no time left for this pack
        elif kind in ("worker_lost", "node_lost") or not job.has_begun:
            self._count(job, False)
        return JobEnd(pack.attempt_id, how, kind, attempt_id)

    def _newest_record(self, pack: SubmittedPack, restarts: int) -> tuple[str, dict[str, Any]]:
        """Return (attempt, record) of a pack's last start that left one."""
        for restart in range(restarts + 1, -1, -1):  # one more than we know of: it may have just been started anew
            attempt_id = nth_attempt_id(pack.attempt_id, restart)
            record = read_attempt(self.store, self.sweep, attempt_id)
            if record is not None:
                return attempt_id, record
        return pack.attempt_id, {}

    def _kind(self, job: _Job, printed: str) -> str:
        """Return the kind of failure of a job that is over, also where the scheduler hides that memory ran out."""
        if job.unknown_since is not None:
            return "worker_lost"
        if job.state.kind == "worker_lost" and _MEMORY.search(printed):
            return "out_of_memory"
        return job.state.kind

    def _count(self, job: _Job, done: bool) -> None:
        """Note how a node does, and leave it out if all it does is fail."""
        node = job.state.node
        if not node:
            return
        (self._done_on if done else self._failed_on)[node] += 1
        others_work = any(count for other, count in self._done_on.items() if other != node)
        if self._failed_on[node] >= BAD_NODE_AT and not self._done_on[node] and others_work:
            if node not in self.excluded:
                self.excluded.append(node)
                log.warning(
                    "node %s failed %d packs and did none: jobs avoid it from now on", node, self._failed_on[node]
                )

    def _hold_cancelled(self, ends: list[JobEnd]) -> list[JobEnd]:
        """Keep cancelled packs back until it is clear whether somebody cancelled one job or everything that was left."""
        others = [end for end in ends if end.kind != "cancelled"]
        cancelled = [end for end in ends if end.kind == "cancelled"]
        if cancelled:
            self._cancelled += cancelled
            self._cancelled_at = self._clock()
        if self._cancelled and not self._jobs:
            everything = len(self._cancelled) > 1 and not others
            kind = "cancelled_all" if everything else "cancelled"
            others += [replace(end, kind=kind) for end in self._cancelled]
            self._cancelled = []
        elif self._clock() - self._cancelled_at >= CANCELLED_S:
            others += self._cancelled
            self._cancelled = []
        return others

    def _forget(self, job: _Job) -> None:
        del self._jobs[job.job_id]
        if not any(other.submission is job.submission for other in self._jobs.values()):
            try:
                self._strike_off(job.submission)
            except OSError as error:
                log.warning("%s is over but cannot be taken off the books: %s", job.submission.name, error)

    def _strike_off(self, submission: Submission) -> None:
        """Take a submission off the books; its folder goes too if all its packs were done, else it may say why not."""
        submission.delete(self.store)
        try:
            committed = take_snapshot(self.store, cache=self._cache).trial_ids()
        except StoreError:
            return
        if all(committed.issuperset(pack.trial_ids) for packs in submission.packs for pack in packs):
            self._spent.append(submission)

    def _remove_folders(self, states: dict[str, JobState]) -> None:
        """Remove the folders of submissions that are done with, but for those into which a job still writes its end."""
        alive = {job_id for job_id, state in states.items() if is_alive(state)}
        for submission in [each for each in self._spent if alive.isdisjoint(each.job_ids)]:
            shutil.rmtree(submission.folder, ignore_errors=True)
            self._spent.remove(submission)


def _last_words(printed: str) -> str:
    """Return the last lines of what a job printed, without what SLURM's own programs say about its end."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    return " / ".join((own or lines)[-3:])


def is_alive(state: JobState | None) -> bool:
    """Whether a job waits or runs, as far as the controller knows."""
    return state is not None and state.phase != "over"


def jobs_folder(profile: Profile, store: Store, sweep: str) -> Path:
    """Return the folder of what jobs are made of and print; all nodes must see it."""
    if profile.folder:
        return Path(profile.folder).expanduser() / sweep
    return Path(store.root) / "slurm" / sweep if store.is_local else Path.home() / ".depthrate" / "slurm" / sweep


def printed_by(submission: Submission, job_id: str) -> str:
    """Return the end of what a job printed to its error output."""
    try:
        paths = sorted(Path(submission.folder).glob(f"{job_id}_*log.err"))
        return "".join(path.read_text(errors="replace")[-20_000:] for path in paths)
    except OSError:
        return ""
