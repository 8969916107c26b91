"""How many jobs of a sweep run at once, whatever arrays they are in: those beyond wait for the end of others.

An array bounds its own jobs (`--array=0-9%4`), but a sweep has several: those that a limit cut it into, and those of packs
that are tried again. Each job takes a lane, of which there are as many as may run; where all are taken it depends on the job
that has the lane. The scheduler keeps to that also when nobody looks after the sweep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from depthrate.orchestrator.executors.slurm_queue import array_of
from depthrate.slurm.profile import Profile


class Lanes:
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
