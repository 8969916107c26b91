"""How packs get into a SLURM queue: as arrays, on the books before they are submitted, as many as there is room for."""

from __future__ import annotations

import heapq
import logging
import math
import shutil
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from getpass import getuser
from typing import TypeVar

from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.orchestrator.executors.slurm.folders import write_trials
from depthrate.orchestrator.executors.slurm.job import run_bundle
from depthrate.orchestrator.executors.slurm.request_budget import SUBMISSIONS_A_MINUTE, RequestBudget
from depthrate.orchestrator.executors.slurm.submissions import JOB_NAME, Submission, SubmittedPack, jobs_folder
from depthrate.slurm.cluster_limits import JobGroup, Limits, SubmitLimits
from depthrate.slurm.command import CALLS, SlurmError
from depthrate.slurm.job_states import array_of
from depthrate.slurm.profile import Profile
from depthrate.slurm.submit import (
    SubmitLimitError,
    UnclearSubmissionError,
    cancel_jobs,
    find_submitted,
    submit_array,
)
from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
FORGET_S = 600.0
"""A limit that was learnt may belong to a whole group, whose other jobs end: it is tried again after so long."""


COUNT_EVERY_S = 60.0
"""Between two counts of the user's other jobs, which come and go without us."""
MAX_USERS_NAMED = 3


class SubmitQuota:
    """How many jobs may be submitted now."""

    def __init__(self, limits: SubmitLimits, clock: Callable[[], float], on_count: Callable[[], object] = lambda: None):
        """Know what limits there are; `on_count` is called when the controller has been asked."""
        self._limits, self._clock, self._on_count = limits, clock, on_count
        self._counts: dict[JobGroup, Counter[str]] = {}
        """User -> jobs that fill a limit beside those of this launch."""
        self._counted_at = float("-inf")
        self._learnt: dict[JobGroup, int] = {}
        self._learnt_at = 0.0

    def _known(self) -> dict[JobGroup, int]:
        if self._clock() - self._learnt_at > FORGET_S:
            self._learnt = {}
        return {**self._limits.most, **self._learnt}

    @property
    def most(self) -> int | None:
        """Jobs that may wait and run together, as far as that is known."""
        return min(self._known().values(), default=None)

    def left(self, alive: int, *, recount: bool = False) -> int | None:
        """Return how many jobs more there is room for beside those that are `alive`; None where no limit is known.

        Raises:
            SlurmError: the controller does not answer.
        """
        limits = self._known()
        if recount or self._clock() - self._counted_at > COUNT_EVERY_S:
            self._counts = {group: self._count(group, alive) for group in limits}
            self._counted_at = self._clock()
        return min((self._left_in(group, most, alive) for group, most in limits.items()), default=None)

    def _left_in(self, group: JobGroup, most: int, alive: int) -> int:
        return max(0, most - self._counts[group].total() - alive)

    def _count(self, group: JobGroup, alive: int) -> Counter[str]:
        self._on_count()
        counts, user = group.count(), getuser()
        counts[user] = max(0, counts[user] - alive)
        return counts

    def learn(self, alive: int, refusal: str, refused: int = 1) -> int:
        """Note that so many jobs were refused beside those that are `alive`, and return how many there may be at most.

        Raises:
            SlurmError: the controller does not answer.
        """
        for group in (self._limits.refused_group(refusal), JobGroup()):
            counts = self._count(group, alive)
            if most := counts.total() + alive + refused - 1:
                self._learnt, self._learnt_at = {group: most}, self._clock()
                self._counts[group] = counts
                return most
        return 0

    def describe(self, alive: int) -> str:
        """Say which limit is the tightest, and whose jobs fill it."""
        limits = self._known()
        group = min(limits, key=lambda group: self._left_in(group, limits[group], alive))
        others = +self._counts[group]
        mine = others.pop(getuser(), 0)
        filled = [f"{counted(alive, 'job')} of this launch"]
        filled += [f"{counted(mine, 'other job')} of this user"] if mine else []
        filled += [f"{count} of {user}" for user, count in others.most_common(MAX_USERS_NAMED)]
        if more := others.total() - sum(count for _, count in others.most_common(MAX_USERS_NAMED)):
            filled.append(f"{more} of other users")
        whose = "all users" if group.is_shared else "this user"
        return f"{group} takes {counted(limits[group], 'job')} of {whose}, and has {', '.join(filled)}"


class ConcurrencySlots:
    """Who has which lane; the last that was given each."""

    def __init__(self, count: int | None):
        self._tails: list[str | None] = [None] * (count or 0)
        """Of each lane a job, or a whole array that has several; the lane that was given last comes last."""

    def bounded(self, profile: Profile, num_jobs: int, alive: Collection[str]) -> Profile:
        """Return the profile of so many new jobs: it makes them wait where too many others are alive."""
        self._free(alive)
        self._tails.sort(key=lambda tail: tail is not None)
        before = dict.fromkeys(tail for tail in self._tails[:num_jobs] if tail is not None)
        if not before:
            return profile
        own = profile.extra.get("dependency")
        waits = ":".join(["afterany", *before])
        return replace(profile, extra={**profile.extra, "dependency": f"{own},{waits}" if own else waits})

    def take(self, job_ids: Sequence[str]) -> None:
        """Give lanes to the jobs of one array."""
        lanes = len(self._tails)
        if len(job_ids) > lanes:
            self._tails = [array_of(job_ids[0])] * lanes
        else:
            self._tails = [*self._tails[len(job_ids) :], *job_ids]

    def _free(self, alive: Collection[str]) -> None:
        """Free the lanes of jobs that are over; an array keeps as many as it has jobs left."""
        seen: Counter[str] = Counter()
        for lane, tail in enumerate(self._tails):
            if tail is None:
                continue
            left = sorted(job_id for job_id in alive if tail in (job_id, array_of(job_id)))
            if len(left) <= len(self._tails):
                self._tails[lane] = left[seen[tail]] if seen[tail] < len(left) else None
            seen[tail] += 1


P = TypeVar("P")
START_UP_S = 6.0
"""What a job is held for before its first packs begin, and after its last: srun, Python, what it imports."""
GUESSED_PARALLEL = 16
"""Jobs that a cluster is taken to run at once where the profile does not say."""


def bundle(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[list[P]]:
    """Put packs into jobs of about `job_min` minutes, the longest packs first and apart, as many jobs as may run at once.

    No job is asked for while another has a slot without a pack. Where a cost is unknown all packs count alike, in four
    rounds of jobs: one that takes longer than its time limit goes on in the next, so nothing is lost by that.
    """
    parallel = profile.array_parallelism or GUESSED_PARALLEL
    costs_s = _costs_s(seconds)
    filled = math.ceil(len(packs) / profile.slots)
    length_s = 60 * min(profile.job_min, 0.8 * profile.walltime_min) * profile.slots
    needed = 4 * parallel if None in seconds else math.ceil(sum(costs_s) / max(length_s, 1e-9))
    count = filled if length_s == 0 else min(filled, max(parallel, needed))
    slots = [(0.0, slot) for slot in range(count * profile.slots)]  # of all jobs: a job's slots are beside each other
    bundles: list[list[P]] = [[] for _ in range(count)]
    for pack, cost_s in sorted(zip(packs, costs_s, strict=True), key=lambda each: -each[1]):
        filled_s, slot = heapq.heappop(slots)
        bundles[slot // profile.slots].append(pack)
        heapq.heappush(slots, (filled_s + cost_s, slot))
    return bundles


def held_s(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[float] | None:
    """Return for how long each job would be held, as `bundle` shares the packs out: from its start-up until its last pack.

    None where a pack's cost is unknown.
    """
    costs_s = [cost_s for cost_s in seconds if cost_s is not None]
    if len(costs_s) < len(seconds):
        return None
    return [
        START_UP_S + max(_ends(members, costs_s, profile)) for members in bundle(range(len(packs)), seconds, profile)
    ]


def _ends(members: Sequence[int], costs_s: Sequence[float], profile: Profile) -> list[float]:
    """Return when each slot of a job is done with its packs, of which each goes to the first slot that is free."""
    ends = [0.0] * profile.slots
    for pack in members:
        heapq.heapreplace(ends, ends[0] + costs_s[pack])
    return ends


def share_of_slots_used(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> float | None:
    """Return which part of their jobs' time the slots (GPUs, or CPUs) have a pack, as `bundle` shares them out.

    Packs of unknown cost count alike; None without any pack.
    """
    costs_s = _costs_s(seconds)
    used_s = given_s = 0.0
    for members in bundle(range(len(packs)), seconds, profile):
        used_s += sum(costs_s[pack] for pack in members)
        given_s += profile.slots * max(_ends(members, costs_s, profile))
    return used_s / given_s if given_s else None


def _costs_s(seconds: Sequence[float | None]) -> list[float]:
    """Return the packs' costs; all alike where one is unknown."""
    costs_s = [cost_s for cost_s in seconds if cost_s is not None]
    return costs_s if len(costs_s) == len(seconds) else [1.0] * len(seconds)


class SbatchRateError(SlurmError):
    """sbatch was called as often as a minute allows."""

    def __init__(self, *, is_full: bool):
        super().__init__(f"sbatch is called {SUBMISSIONS_A_MINUTE} times per minute at most")
        self.is_full = is_full
        """Whether the cluster has no room for all that is left either."""


class Submitter:
    """Submits jobs, each a bundle of packs."""

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        store: Store,
        sweep: str,
        room: SubmitQuota,
        lanes: ConcurrencySlots,
        requests: RequestBudget,
    ):
        self._profile, self._limits, self._store, self._sweep = profile, limits, store, sweep
        self._room, self._lanes, self._requests = room, lanes, requests
        self._size = limits.array_size
        """Jobs of the next array at most: fewer while a limit is searched that only refusals show."""
        self._unclear: list[Submission] = []
        """What sbatch may or may not have accepted; its packs are submitted again once that is known."""

    def submit(
        self, bundles: Sequence[list[AttemptSpec]], excluded: Sequence[str], alive: Callable[[], Sequence[str]]
    ) -> Iterator[Submission]:
        """Yield arrays as they are submitted, ever shorter ones where the cluster refuses; `alive` returns the live jobs.

        Raises:
            SubmitLimitError: it takes no more for now.
            SbatchRateError: it is to be asked later.
            SlurmError: it refuses for another reason, or does not answer.
        """
        self._clear_up()
        left, was_refused = deque(bundles), False
        while left:
            jobs_alive = alive()
            room = self._room.left(len(jobs_alive))
            size = min(self._size, len(left), self._size if room is None else room)
            if size == 0:
                raise SubmitLimitError(self._room.describe(len(jobs_alive)))
            if not self._requests.may_submit(is_full=False):
                raise SbatchRateError(is_full=room is not None and room < len(left))
            try:
                yield self._submit_array([left[index] for index in range(size)], excluded, jobs_alive)
            except SubmitLimitError as error:
                room = self._room.left(len(jobs_alive), recount=True)
                if room is not None and room < size:
                    continue  # jobs of ours that have ended leave a moment later
                self._size, was_refused = max(1, size // 2), True
                if self._room.learn(len(jobs_alive), str(error), size):
                    continue
                raise SlurmError(f"the cluster's limits take not even one job of this user: {error}") from None
            for _ in range(size):
                left.popleft()
            if not was_refused:
                self._size = min(self._limits.array_size, 2 * self._size)

    def _submit_array(
        self, bundles: Sequence[list[AttemptSpec]], excluded: Sequence[str], alive: Sequence[str]
    ) -> Submission:
        name = JOB_NAME.format(sweep=self._sweep, number=new_attempt_id())
        folder = jobs_folder(self._profile, self._store, self._sweep) / name
        packs = [
            [SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids, job.options.code_version) for job in bundle]
            for bundle in bundles
        ]
        submission = Submission(name, self._sweep, self._limits.cluster, str(folder), packs)
        submission.write(self._store)  # first, so that a job can always be found again by its name
        write_trials(folder, (trial_id for bundle in bundles for job in bundle for trial_id in job.trial_ids))
        arguments = [[job.to_json() for job in bundle] for bundle in bundles]
        profile = self._lanes.bounded(self._profile, len(bundles), alive)
        called = CALLS["sbatch"]
        try:
            submission.job_ids = submit_array(profile, name, folder, run_bundle, arguments, excluded)
        except UnclearSubmissionError:
            self._unclear.append(submission)  # stays in the store, for whoever comes after us
            raise
        except SlurmError as error:
            submission.delete(self._store)
            if isinstance(error, SubmitLimitError):  # of another refusal the message names the script
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._requests.note_submission(CALLS["sbatch"] - called or 1)  # once under each account and QOS
        try:
            submission.write(self._store)
        except OSError as error:  # its jobs are found by their name
            log.warning("the ids of its jobs are not written down: %s", error)
        self._lanes.take(submission.job_ids)
        return submission

    def _clear_up(self) -> None:
        """Cancel what sbatch accepted without saying so, and forget it: its packs are about to be submitted again.

        Raises:
            SlurmError: the controller does not say whether it has those jobs.
        """
        while self._unclear:
            submission = self._unclear[-1]
            if job_ids := find_submitted(submission.name, len(submission.packs)):
                cancel_jobs(job_ids)
            submission.delete(self._store)
            self._unclear.pop()
