"""When a SLURM controller may be asked again: the one place that decides it, for squeue, sacct and sbatch.

Every user's questions are answered by one process, and sites lock out who asks too much. So in the long run a launch asks
for its jobs' states once in `poll_s`, and what is new in between it reads in the store; some questions may come sooner, as
long as jobs are short, and come back with time.
"""

from __future__ import annotations

from collections.abc import Callable

POLL_S = 15.0
"""Between two looks at the queue in the long run, where the cluster file says nothing of it."""
LOOKS_AT_ONCE, SUBMISSIONS_AT_ONCE = 3, 4
"""Looks, and submissions, that may come sooner; each comes back after as long as the next would have waited."""
SOONEST_S = 2.0
"""Between two looks, however short jobs are."""
LOOKS_A_JOB = 8
"""More looks than this in the time that a job takes tell nothing new."""
SLOW_S = 5.0
"""A controller that takes longer to answer than this is asked half as often, and so is one that does not answer."""
LONGEST_AWAY_S = 300.0
"""Between two looks, however slow it is."""
SUBMIT_EVERY_S, RESUBMIT_EVERY_S = 30.0, 15.0
"""Between two submissions in the long run: where there is no room for all jobs, and where there is."""


class _Bucket:
    """Holds at most `size` permits, one of which comes back every `every_s` seconds."""

    def __init__(self, size: int, every_s: float, now: float):
        self._size, self._every_s = size, every_s
        self._left, self._filled_at = float(size), now

    def fill(self, now: float) -> None:
        self._left = min(self._size, self._left + (now - self._filled_at) / self._every_s)
        self._filled_at = now

    @property
    def has_any(self) -> bool:
        return self._left >= 1 - 1e-9

    def take(self) -> None:
        self._left -= 1


class RequestBudget:
    """What a launch may ask of a controller now; `poll_s`, where given, is the least time between two looks."""

    def __init__(self, clock: Callable[[], float], poll_s: float | None = None):
        self._clock, self._given_s = clock, poll_s
        now = clock()
        self._looks = _Bucket(LOOKS_AT_ONCE if poll_s is None else 1, poll_s or POLL_S, now)
        self._submissions = _Bucket(SUBMISSIONS_AT_ONCE, RESUBMIT_EVERY_S, now)
        self._not_before = float("-inf")
        self._away_s = 0.0
        """By how much looks are further apart than usual, since the controller is slow or away."""
        self._submitted_at = float("-inf")

    def may_look(self, job_s: float | None = None) -> bool:
        """Whether it is time to ask for the jobs' states, given how long jobs of this launch take, where that is known."""
        now = self._clock()
        self._looks.fill(now)
        floor_s = 0.0 if self._given_s is not None else min(POLL_S, (job_s or 0.0) / LOOKS_A_JOB)
        return now >= self._not_before + floor_s and self._looks.has_any

    def note_look(self, took_s: float, *, has_answered: bool) -> None:
        """Note that it was asked for the states, how long that took, and whether it answered."""
        self._looks.take()
        if has_answered and took_s <= SLOW_S:
            self._away_s = 0.0
        else:
            self._away_s = min(LONGEST_AWAY_S, 2 * max(self._away_s, self._given_s or POLL_S))
        self._not_before = self._clock() + max(SOONEST_S, self._away_s)

    def may_submit(self, *, is_full: bool) -> bool:
        """Whether sbatch may be called, where there is no room for all jobs (`is_full`), or there is."""
        now = self._clock()
        self._submissions.fill(now)
        return now - self._submitted_at >= SUBMIT_EVERY_S if is_full else self._submissions.has_any

    def note_submission(self) -> None:
        """Note that it was called."""
        self._submissions.take()
        self._submitted_at = self._clock()
