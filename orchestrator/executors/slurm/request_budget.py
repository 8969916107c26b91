"""When a SLURM controller may be asked again: the one place that decides it, for squeue, sacct and sbatch.

Every user's questions are answered by one process, and sites lock out who asks too much. So a launch asks for its jobs'
states once in `poll_s`, and what is new in between it reads in the store. Where something is to be expected, jobs just
submitted or a time limit that has passed, it may ask sooner: `NEWS_A_MINUTE` times, so that no minute has more than six
questions.
"""

from __future__ import annotations

from collections.abc import Callable

QUEUE_POLL_INTERVAL_S = 15.0
"""Between two looks at the queue, where the cluster file says nothing of it and nothing is to be expected."""
NEWS_A_MINUTE = 2
"""Looks in any minute that may come sooner."""
SUBMISSIONS_AT_ONCE = 3
"""Calls of sbatch that may come sooner than in the long run, so that no minute has more than six."""
MIN_QUEUE_POLL_INTERVAL_S = 5.0
"""Between two looks, whatever is to be expected."""
SLOW_S = 5.0
"""A controller that takes longer to answer than this is asked half as often, and so is one that does not answer."""
MAX_AWAY_S = 300.0
"""Between two looks, however slow it is."""
SUBMIT_EVERY_S, RESUBMIT_EVERY_S = 30.0, 20.0
"""Between two calls of sbatch in the long run: where there is no room for all jobs, and where there is."""
SUBMISSIONS_A_MINUTE = SUBMISSIONS_AT_ONCE + round(60 / RESUBMIT_EVERY_S)


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

    def take(self, number: int = 1) -> None:
        self._left -= number


class RequestBudget:
    """What a launch may ask of a controller now; `poll_s`, where given, is the least time between two looks."""

    def __init__(self, clock: Callable[[], float], poll_s: float | None = None):
        self._clock, self._given_s = clock, poll_s
        now = clock()
        self._news = _Bucket(NEWS_A_MINUTE if poll_s is None else 0, 60.0, now)
        self._submissions = _Bucket(SUBMISSIONS_AT_ONCE, RESUBMIT_EVERY_S, now)
        self._not_before = self._next_look = float("-inf")
        self._away_s = 0.0
        """By how much looks are further apart than usual, since the controller is slow or away."""
        self.submitted_at = float("-inf")
        """When sbatch was last called."""

    def may_poll(self, *, is_news_due: bool = False) -> bool:
        """Whether it is time to ask for the jobs' states, sooner where `is_news_due`."""
        now = self._clock()
        self._news.fill(now)
        return now >= self._next_look or (is_news_due and now >= self._not_before and self._news.has_any)

    def note_look(self, took_s: float, *, has_answered: bool) -> None:
        """Note that it was asked for the states, how long that took, and whether it answered."""
        now, poll_s = self._clock(), self._given_s or QUEUE_POLL_INTERVAL_S
        if now < self._next_look:
            self._news.take()
        if has_answered and took_s <= SLOW_S:
            self._away_s = 0.0
        else:
            self._away_s = min(MAX_AWAY_S, 2 * max(self._away_s, poll_s))
        self._not_before = now + max(MIN_QUEUE_POLL_INTERVAL_S, self._away_s)
        self._next_look = now + max(poll_s, self._away_s)

    def note_count(self) -> None:
        """Note that it was asked how many jobs the user has: that is a question like the others."""
        self._news.fill(self._clock())
        if self._news.has_any:
            self._news.take()
        else:
            self._next_look = max(self._next_look, self._clock()) + (self._given_s or QUEUE_POLL_INTERVAL_S)

    def may_submit(self, *, is_full: bool) -> bool:
        """Whether sbatch may be called, where there is no room for all jobs (`is_full`), or there is."""
        now = self._clock()
        self._submissions.fill(now)
        return now - self.submitted_at >= SUBMIT_EVERY_S if is_full else self._submissions.has_any

    def note_submission(self, number: int = 1) -> None:
        """Note that it was called so often."""
        self._submissions.take(number)
        self.submitted_at = self._clock()
