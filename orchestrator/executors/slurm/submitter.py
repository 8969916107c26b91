"""Submission of packs to SLURM as job arrays, within the submit limits. Each array is recorded before it is submitted."""

import heapq
import logging
import math
import re
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from getpass import getuser
from statistics import median
from typing import TypeVar

from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import SubmittedPack
from depthrate.orchestrator.executors.slurm.folders import write_trials
from depthrate.orchestrator.executors.slurm.job import run_bundle
from depthrate.orchestrator.executors.slurm.request_rate import MAX_SUBMISSIONS_PER_MIN, RequestBudget
from depthrate.orchestrator.executors.slurm.submissions import JOB_NAME, Submission, jobs_folder
from depthrate.slurm.cluster_limits import JobGroup, Limits, SubmitLimits
from depthrate.slurm.command import CALLS
from depthrate.slurm.errors import SlurmError, SubmitLimitError, UnclearSubmissionError
from depthrate.slurm.profile import Profile
from depthrate.slurm.submit import cancel_jobs, find_submitted, submit_array
from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
COUNT_INTERVAL_S = 60.0
"""Seconds between counts of the jobs outside this launch."""
MIN_JOB_MINUTES = 1.0
"""Shortest run time of a bundle in minutes, if the cluster accepts fewer jobs than there are packs."""
MAX_PACK_TIMES = 32
"""Maximum number of pack run times that are stored for estimates."""
MAX_USERS_NAMED = 3
"""Maximum number of users listed in the message about an exhausted limit."""
_SHARED_LIMITS = re.compile(r"GrpSubmitJob|PerAccount|MaxJobCount|unable to accept job")
"""Limits in sbatch's refusals toward which the jobs of other users count."""


class SubmitQuota:
    """Number of jobs that may be submitted now."""

    def __init__(self, limits: SubmitLimits, clock: Callable[[], float], on_count: Callable[[], object] = lambda: None):
        """Store these limits. `on_count` is called after each query of the controller."""
        self._limits, self._clock, self._on_count = limits, clock, on_count
        self._counts: dict[JobGroup, Counter[str]] = {}
        """Limit -> (user -> jobs that count towards it, except this launch's jobs)."""
        self._counted_at = float("-inf")

    @property
    def max_jobs(self) -> int | None:
        """Largest known number of waiting and running jobs, or None without a known limit."""
        return min(self._limits.max_jobs.values(), default=None)

    def remaining(self, alive: int, *, recount: bool = False) -> int | None:
        """Return the number of jobs that can be added to the `alive` jobs, or None without a known limit.

        Raises:
            SlurmError: The controller does not answer.
        """
        limits = self._limits.max_jobs
        if recount or self._clock() - self._counted_at > COUNT_INTERVAL_S:
            self._counts = {group: self._count(group, alive) for group in limits}
            self._counted_at = self._clock()
        return min((self._remaining_in(group, limit, alive) for group, limit in limits.items()), default=None)

    def _remaining_in(self, group: JobGroup, limit: int, alive: int) -> int:
        return max(0, limit - self._counts[group].total() - alive)

    def _count(self, group: JobGroup, alive: int) -> Counter[str]:
        self._on_count()
        counts, user = group.count(), getuser()
        counts[user] = max(0, counts[user] - alive)
        return counts

    def has_jobs(self) -> bool:
        """Return whether the user has any waiting or running jobs.

        Raises:
            SlurmError: The controller does not answer.
        """
        return bool(self._count(JobGroup(), 0).total())

    def describe(self, alive: int) -> str:
        """Return the tightest limit, and the users whose jobs fill it, as a string."""
        limits = self._limits.max_jobs
        group = min(limits, key=lambda group: self._remaining_in(group, limits[group], alive))
        others = +self._counts[group]
        same_user = others.pop(getuser(), 0)
        parts = [f"{counted(alive, 'job')} of this launch"]
        parts += [f"{counted(same_user, 'other job')} of this user"] if same_user else []
        parts += [f"{count} of {user}" for user, count in others.most_common(MAX_USERS_NAMED)]
        if more := others.total() - sum(count for _, count in others.most_common(MAX_USERS_NAMED)):
            parts.append(f"{more} of other users")
        users = "all users" if group.is_shared else "this user"
        return f"{group} accepts {counted(limits[group], 'job')} of {users}, and has {', '.join(parts)}"


P = TypeVar("P")
JOB_OVERHEAD_S = 6.0
"""Time in seconds that a job spends before its first pack and after its last pack: srun, Python and its imports."""
GUESSED_PARALLEL = 16
"""Assumed number of parallel jobs, if the cluster file has no array_parallelism."""


def bundle(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[list[P]]:
    """Distribute packs over jobs of about `job_min` minutes, longest packs first, using all parallel jobs.

    No job has an unused slot. If a cost is unknown, all packs count equally and fill four rounds of parallel jobs. A pack that
    exceeds its job's time limit resumes in the next job, so nothing is lost.
    """
    parallel = profile.array_parallelism or GUESSED_PARALLEL
    costs_s = _costs_s(seconds)
    filled = math.ceil(len(packs) / profile.slots)
    length_s = 60 * min(profile.job_min, 0.8 * profile.walltime_min) * profile.slots
    needed = 4 * parallel if None in seconds else math.ceil(sum(costs_s) / max(length_s, 1e-9))
    count = filled if length_s == 0 else min(filled, max(parallel, needed))
    slots = [(0.0, slot) for slot in range(count * profile.slots)]  # slots of all jobs, grouped by job
    bundles: list[list[P]] = [[] for _ in range(count)]
    for pack, cost_s in sorted(zip(packs, costs_s, strict=True), key=lambda entry: -entry[1]):
        filled_s, slot = heapq.heappop(slots)
        bundles[slot // profile.slots].append(pack)
        heapq.heappush(slots, (filled_s + cost_s, slot))
    return bundles


def job_durations_s(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[float] | None:
    """Return the seconds that each job of `bundle` would take, start-up included, or None if a pack's cost is unknown."""
    return None if None in seconds else [JOB_OVERHEAD_S + end_s for end_s in _job_ends_s(packs, seconds, profile)]


def _job_ends_s(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[float]:
    """Return the seconds at which each job of `bundle` finishes its packs, if each pack takes the first free slot."""
    costs_s, job_ends_s = _costs_s(seconds), []
    for members in bundle(range(len(packs)), seconds, profile):
        slot_ends_s = [0.0] * profile.slots
        for pack in members:
            heapq.heapreplace(slot_ends_s, slot_ends_s[0] + costs_s[pack])
        job_ends_s.append(max(slot_ends_s))
    return job_ends_s


def share_of_slots_used(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> float | None:
    """Return the share of the jobs' slot time that packs use, as `bundle` distributes them. None without packs.

    If a cost is unknown, all packs count equally.
    """
    allocated_s = profile.slots * sum(_job_ends_s(packs, seconds, profile))
    return sum(_costs_s(seconds)) / allocated_s if allocated_s else None


def _costs_s(seconds: Sequence[float | None]) -> list[float]:
    """Return the packs' costs in seconds, or equal costs if any cost is unknown."""
    costs_s = [cost_s for cost_s in seconds if cost_s is not None]
    return costs_s if len(costs_s) == len(seconds) else [1.0] * len(seconds)


class SbatchRateError(SlurmError):
    """The limit on calls of sbatch per minute is reached, although the queue has space. `cause`: refusal that used them up."""

    def __init__(self, cause: SubmitLimitError | None) -> None:
        super().__init__(str(cause or f"the limit of {MAX_SUBMISSIONS_PER_MIN} sbatch calls per minute is reached"))


class Submitter:
    """Submits packs as arrays of jobs: bundles them, keeps the limits, and remembers a refusal."""

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        store: Store,
        sweep: str,
        quota: SubmitQuota,
        requests: RequestBudget,
    ):
        self._profile, self._limits, self._store, self._sweep = profile, limits, store, sweep
        self._quota, self._requests = quota, requests
        self._array_size = limits.array_size
        """Largest size of the next array. Halved after a refusal, and doubled after a submission without one."""
        self._halved_by: SubmitLimitError | None = None
        """The last refusal, while it makes arrays smaller."""
        self._pack_s: deque[float] = deque(maxlen=MAX_PACK_TIMES)
        """Run times of the latest packs, in seconds."""
        self._refusal: str | None = None
        """Message of the limit at which the last submission stopped."""
        self._unclear: list[Submission] = []
        """Submissions that sbatch may have accepted. Their packs are resubmitted once that is known."""

    def record_pack(self, seconds: float) -> None:
        """Record the run time of a pack, which estimates packs without an estimate."""
        self._pack_s.append(max(0.0, seconds))

    def profile_within_limits(self) -> Profile:
        """Return the profile with parallel jobs bounded by the submit limit. A limit also rules out very short jobs."""
        max_jobs, profile = self._quota.max_jobs, self._profile
        if max_jobs is None:
            return profile
        parallel = min(max_jobs, profile.array_parallelism or max_jobs)
        return replace(profile, array_parallelism=parallel, job_min=max(profile.job_min, MIN_JOB_MINUTES))

    def submit_packs(
        self,
        packs: Sequence[AttemptSpec],
        excluded: Callable[[Sequence[str]], Sequence[str]],
        alive: Callable[[], Sequence[str]],
    ) -> Iterator[tuple[Submission, Sequence[str]]]:
        """Yield (array, nodes where its packs failed) as arrays are submitted, packs without failures first.

        Args:
            excluded: Returns the nodes to exclude for packs that failed on the given nodes.
            alive: Returns the live jobs.
        Raises:
            SlurmError: As `submit`. Also `SubmitLimitError` if a limit was reached less than `FULL_SUBMIT_INTERVAL_S` ago.
        """
        if self._refusal is not None and not self._requests.may_submit(is_full=True):
            raise SubmitLimitError(self._refusal)
        self._refusal = None
        typical_s = median(self._pack_s) if self._pack_s else None
        alike: dict[tuple[tuple[str, ...], bool], list[AttemptSpec]] = {}
        for pack in sorted(packs, key=lambda pack: bool(pack.avoid)):
            alike.setdefault((tuple(pack.avoid), pack.shares_memory), []).append(pack)
        profile = self.profile_within_limits()
        try:
            for (failed, shares_memory), members in alike.items():
                seconds = [typical_s if pack.estimated_s is None else pack.estimated_s for pack in members]
                bundles = bundle(members, seconds, profile) if shares_memory else [[pack] for pack in members]
                for submission in self.submit(bundles, excluded(failed), alive):
                    yield submission, failed
        except SubmitLimitError as error:
            self._refusal = str(error)
            raise

    def submit(
        self, bundles: Sequence[list[AttemptSpec]], excluded: Sequence[str], alive: Callable[[], Sequence[str]]
    ) -> Iterator[Submission]:
        """Yield arrays as they are submitted, halving the size after a refusal. `alive` returns the live jobs.

        Raises:
            SubmitLimitError: The cluster accepts no more jobs for now.
            SbatchRateError: sbatch may not be called again yet.
            SlurmError: sbatch refused the jobs for another reason, or the controller does not answer.
        """
        self._cancel_unclear()
        pending, was_refused = deque(bundles), False
        while pending:
            num_alive, limit = len(alive()), self._profile.array_parallelism
            if limit is not None and num_alive >= limit:  # SLURM bounds the parallel jobs of one array only
                raise SubmitLimitError(f"array_parallelism is {limit}, and {counted(num_alive, 'job')} wait or run")
            quota = self._quota.remaining(num_alive)
            size = min(self._array_size, len(pending), self._array_size if quota is None else quota)
            if limit is not None and num_alive:
                size = min(size, limit - num_alive)
            if size == 0:
                raise self._full_error(num_alive)
            if not self._requests.may_submit(is_full=False):
                has_space = quota is None or quota >= len(pending)
                raise SbatchRateError(self._halved_by) if has_space else self._full_error(num_alive)
            try:
                yield self._submit_array([pending[index] for index in range(size)], excluded)
            except SubmitLimitError as error:
                quota = self._quota.remaining(num_alive, recount=True)
                if quota is not None and quota < size:
                    continue  # SLURM still counts this launch's ended jobs for a moment
                self._array_size, self._halved_by = max(1, size // 2), error
                was_refused = True
                if size > 1:
                    continue
                if _SHARED_LIMITS.search(str(error)) or self._quota.has_jobs():
                    raise
                raise SlurmError(f"the cluster's limits allow no job of this user: {error}") from None
            for _ in range(size):
                pending.popleft()
            if not was_refused:
                self._array_size = min(self._limits.array_size, 2 * self._array_size)
                self._halved_by = self._halved_by if self._array_size < self._limits.array_size else None

    def _full_error(self, num_alive: int) -> SubmitLimitError:
        return SubmitLimitError(self._quota.describe(num_alive))

    def _submit_array(self, bundles: Sequence[list[AttemptSpec]], excluded: Sequence[str]) -> Submission:
        name = JOB_NAME.format(sweep=self._sweep, number=new_attempt_id())
        folder = jobs_folder(self._profile, self._store, self._sweep) / name
        packs = [
            [SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids, job.options.code_version) for job in bundle]
            for bundle in bundles
        ]
        job_name = self._profile.job_name_of(name, self._sweep)
        submission = Submission(name, self._sweep, self._limits.cluster, str(folder), packs, job_name=job_name)
        submission.write(self._store)  # recorded before sbatch, so that its jobs can always be found by name
        write_trials(folder, (trial_id for bundle in bundles for job in bundle for trial_id in job.trial_ids))
        arguments = [[job.to_json() for job in bundle] for bundle in bundles]
        called = CALLS["sbatch"]
        try:
            submission.job_ids = submit_array(self._profile, job_name, folder, run_bundle, arguments, excluded)
        except UnclearSubmissionError:
            self._unclear.append(submission)  # remains in the store for later launches
            raise
        except SlurmError as error:
            submission.delete(self._store)
            if isinstance(error, SubmitLimitError):  # other refusals refer to the script in the folder
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._requests.record_submission(CALLS["sbatch"] - called or 1)  # one limit query per account and QOS
        try:
            submission.write(self._store)
        except OSError as error:  # its jobs can still be found by name
            log.warning("cannot write the job IDs of %s: %s", name, error)
        return submission

    def _cancel_unclear(self) -> None:
        """Cancel jobs of unclear submissions that sbatch accepted after all, since their packs are about to be resubmitted."""
        while self._unclear:
            submission = self._unclear[-1]
            if job_ids := find_submitted(submission.job_name, len(submission.packs)):
                cancel_jobs(job_ids)
            submission.delete(self._store)
            self._unclear.pop()
