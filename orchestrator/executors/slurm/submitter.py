"""How packs get into a SLURM queue: as arrays, on the books before they are submitted, as many as there is room for."""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import PackJob
from depthrate.orchestrator.executors.slurm.job import run_bundle
from depthrate.orchestrator.executors.slurm.queue import array_of
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack, jobs_folder
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits, count_submitted
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


class SubmitQuota:
    """How many jobs may be submitted now."""

    def __init__(self, most: int | None, clock: Callable[[], float], on_count: Callable[[], object] = lambda: None):
        """Know of a limit that is `most`, if any; `on_count` is called when the controller has been asked."""
        self._said, self._clock, self._on_count = most, clock, on_count
        self._others = 0
        self._counted_at = float("-inf")
        self._learnt: int | None = None
        self._learnt_at = 0.0

    @property
    def most(self) -> int | None:
        """Jobs that may wait and run together, as far as that is known."""
        if self._learnt is not None and self._clock() - self._learnt_at > FORGET_S:
            self._learnt = None
        known = [each for each in (self._said, self._learnt) if each is not None]
        return min(known, default=None)

    def left(self, alive: int) -> int | None:
        """Return how many jobs more there is room for beside those that are `alive`; None where no limit is known.

        Raises:
            SlurmError: the controller does not answer.
        """
        if self.most is None:
            return None
        if self._clock() - self._counted_at > COUNT_EVERY_S:
            self._count(alive)
        return max(0, self.most - self._others - alive)

    def recount(self, alive: int) -> int | None:
        """Return what `left` does, the user's other jobs counted anew.

        Raises:
            SlurmError: the controller does not answer.
        """
        self._counted_at = float("-inf")
        return self.left(alive)

    def _count(self, alive: int) -> int:
        self._on_count()
        there = count_submitted()
        self._others, self._counted_at = max(0, there - alive), self._clock()
        return there

    def learn(self, alive: int) -> int:
        """Note that not one job more was taken beside those that are `alive`, and return how many there are.

        Raises:
            SlurmError: the controller does not answer.
        """
        there = self._count(alive)
        if there:
            self._learnt, self._learnt_at = there, self._clock()
        return there


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


class Submitter:
    """Submits jobs, each a bundle of packs."""

    def __init__(
        self, profile: Profile, limits: Limits, store: Store, sweep: str, room: SubmitQuota, lanes: ConcurrencySlots
    ):
        self._profile, self._limits, self._store, self._sweep = profile, limits, store, sweep
        self._room, self._lanes = room, lanes
        self._unclear: list[Submission] = []
        """What sbatch may or may not have accepted; its packs are submitted again once that is known."""

    def submit(
        self, bundles: Sequence[list[PackJob]], excluded: Sequence[str], alive: Callable[[], Sequence[str]]
    ) -> Iterator[Submission]:
        """Yield arrays as they are submitted, ever shorter ones where the cluster refuses; `alive` tells the jobs there are.

        Raises:
            SubmitLimitError: it takes no more for now.
            SlurmError: it refuses for another reason, or does not answer.
        """
        self._clear_up()
        left = deque(bundles)
        size = self._limits.array_size
        while left:
            jobs_alive = alive()
            room = self._room.left(len(jobs_alive))
            size = min(size, len(left), size if room is None else room)
            if size == 0:
                raise SubmitLimitError(f"the cluster takes {counted(self._room.most or 0, 'job')} of this user")
            try:
                yield self._submit_array([left[index] for index in range(size)], excluded, jobs_alive)
            except SubmitLimitError:
                room = self._room.recount(len(jobs_alive))
                if room is not None and room < size:  # jobs of ours that have ended leave a moment later
                    size = room
                    if size == 0:
                        raise
                    continue
                if size == 1 and not self._room.learn(len(jobs_alive)):
                    raise SlurmError("the cluster's limits take not even one job of this user") from None
                if size == 1:
                    raise
                size //= 2
            else:
                for _ in range(size):
                    left.popleft()

    def _submit_array(
        self, bundles: Sequence[list[PackJob]], excluded: Sequence[str], alive: Sequence[str]
    ) -> Submission:
        name = f"depthrate-{self._sweep}-{new_attempt_id()}"
        folder = jobs_folder(self._profile, self._store, self._sweep) / name
        packs = [
            [SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids, job.options.code) for job in bundle]
            for bundle in bundles
        ]
        submission = Submission(name, self._sweep, self._limits.cluster, str(folder), packs)
        submission.write(self._store)  # first, so that a job can always be found again by its name
        try:
            arguments = [[job.to_json() for job in bundle] for bundle in bundles]
            profile = self._lanes.bounded(self._profile, len(bundles), alive)
            submission.job_ids = submit_array(profile, name, folder, run_bundle, arguments, excluded)
        except UnclearSubmissionError:
            self._unclear.append(submission)  # stays in the store, for whoever comes after us
            raise
        except SlurmError:
            submission.delete(self._store)
            raise
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
