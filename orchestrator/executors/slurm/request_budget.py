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
EXTRA_POLLS_PER_MIN = 2
"""Looks in any minute that may come sooner."""
SUBMISSION_BURST = 3
"""Calls of sbatch that may come sooner than in the long run, so that no minute has more than six."""
MIN_QUEUE_POLL_INTERVAL_S = 5.0
"""Between two looks, whatever is to be expected."""
SLOW_ANSWER_S = 5.0
"""A controller that takes longer to answer than this is asked half as often, and so is one that does not answer."""
MAX_BACKOFF_S = 300.0
"""Between two looks, however slow it is."""
FULL_SUBMIT_INTERVAL_S, SUBMIT_INTERVAL_S = 30.0, 20.0
"""Between two calls of sbatch in the long run: where there is no room for all jobs, and where there is."""
MAX_SUBMISSIONS_PER_MIN = SUBMISSION_BURST + round(60 / SUBMIT_INTERVAL_S)


class _Bucket:
    """Holds at most `size` permits, one of which comes back every `every_s` seconds."""

    def __init__(self, size: int, every_s: float, now: float):
        self._size, self._interval_s = size, every_s
        self._permits, self._filled_at = float(size), now

    def fill(self, now: float) -> None:
        self._permits = min(self._size, self._permits + (now - self._filled_at) / self._interval_s)
        self._filled_at = now

    @property
    def has_any(self) -> bool:
        return self._permits >= 1 - 1e-9

    def take(self, number: int = 1) -> None:
        self._permits -= number


class RequestBudget:
    """What a launch may ask of a controller now; `poll_s`, where given, is the least time between two looks."""

    def __init__(self, clock: Callable[[], float], poll_s: float | None = None):
        self._clock, self._poll_s = clock, poll_s
        now = clock()
        self._extra_polls = _Bucket(EXTRA_POLLS_PER_MIN if poll_s is None else 0, 60.0, now)
        self._submissions = _Bucket(SUBMISSION_BURST, SUBMIT_INTERVAL_S, now)
        self._next_extra_poll = self._next_poll = float("-inf")
        self._backoff_s = 0.0
        """By how much looks are further apart than usual, since the controller is slow or away."""
        self.submitted_at = float("-inf")
        """When sbatch was last called."""

    def may_poll(self, *, is_news_due: bool = False) -> bool:
        """Whether it is time to ask for the jobs' states, sooner where `is_news_due`."""
        now = self._clock()
        self._extra_polls.fill(now)
        return now >= self._next_poll or (is_news_due and now >= self._next_extra_poll and self._extra_polls.has_any)

    def record_poll(self, took_s: float, *, has_answered: bool) -> None:
        """Note that it was asked for the states, how long that took, and whether it answered."""
        now, poll_s = self._clock(), self._poll_s or QUEUE_POLL_INTERVAL_S
        if now < self._next_poll:
            self._extra_polls.take()
        if has_answered and took_s <= SLOW_ANSWER_S:
            self._backoff_s = 0.0
        else:
            self._backoff_s = min(MAX_BACKOFF_S, 2 * max(self._backoff_s, poll_s))
        self._next_extra_poll = now + max(MIN_QUEUE_POLL_INTERVAL_S, self._backoff_s)
        self._next_poll = now + max(poll_s, self._backoff_s)

    def record_count(self) -> None:
        """Note that it was asked how many jobs the user has: that is a question like the others."""
        self._extra_polls.fill(self._clock())
        if self._extra_polls.has_any:
            self._extra_polls.take()
        else:
            self._next_poll = max(self._next_poll, self._clock()) + (self._poll_s or QUEUE_POLL_INTERVAL_S)

    def may_submit(self, *, is_full: bool) -> bool:
        """Whether sbatch may be called, where there is no room for all jobs (`is_full`), or there is."""
        now = self._clock()
        self._submissions.fill(now)
        return now - self.submitted_at >= FULL_SUBMIT_INTERVAL_S if is_full else self._submissions.has_any

    def record_submission(self, number: int = 1) -> None:
        """Note that it was called so often."""
        self._submissions.take(number)
        self.submitted_at = self._clock()
