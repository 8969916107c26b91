"""Request budget of a launch for a SLURM controller: decides when squeue, sacct and sbatch may be called.

One process answers the requests of all users, and sites block users that send too many. So a launch queries its jobs' states
once per `poll_s`, and reads the store for changes in between. After a submission, or once a time limit has passed, it may query
sooner, `EXTRA_POLLS_PER_MIN` times per minute, so that no minute has more than six queries.
"""

from collections.abc import Callable

from depthrate.orchestrator.attempts.liveness import POLL_BACKOFF_FACTOR

QUEUE_POLL_INTERVAL_S = 15.0
"""Default seconds between queries of the queue."""
EXTRA_POLLS_PER_MIN = 2
"""Number of queries in any minute that may come sooner than the interval."""
SUBMISSION_BURST = 3
"""Number of sbatch calls that may come sooner than `SUBMIT_INTERVAL_S`, so that no minute has more than six calls."""
MIN_QUEUE_POLL_INTERVAL_S = 5.0
"""Shortest time in seconds between two queries."""
SLOW_ANSWER_S = 5.0
"""Answer time in seconds above which the frequency of queries is halved, as it is after a failure."""
MAX_BACKOFF_S = 300.0
"""Longest time in seconds between queries of a slow controller."""
FULL_SUBMIT_INTERVAL_S = 30.0
"""Seconds between calls of sbatch while the queue is full."""
SUBMIT_INTERVAL_S = 20.0
"""Long-term average of the seconds between calls of sbatch while the queue has space."""
MAX_SUBMISSIONS_PER_MIN = SUBMISSION_BURST + round(60 / SUBMIT_INTERVAL_S)


class _Bucket:
    """Token bucket of `size` permits that regains one permit every `interval_s` seconds."""

    def __init__(self, size: int, interval_s: float, now: float):
        self._size, self._interval_s = size, interval_s
        self._permits, self._filled_at = float(size), now

    def fill(self, now: float) -> None:
        self._permits = min(self._size, self._permits + (now - self._filled_at) / self._interval_s)
        self._filled_at = now

    @property
    def has_any(self) -> bool:
        return self._permits >= 1 - 1e-9

    def take(self, number: int = 1) -> None:
        self._permits -= number


MIN_RECORD_POLL_INTERVAL_S = 2.0
"""Seconds after a change until records are read again. The interval grows while nothing changes. The request budget decides
whether the queue is polled at the same time."""


class RecordPolls:
    """Decides when a launch reads the records of its jobs: soon after a change, then less and less often."""

    def __init__(self, clock: Callable[[], float], max_interval_s: float):
        self._clock, self._max_interval_s = clock, max_interval_s
        self._interval_s, self.next_at = MIN_RECORD_POLL_INTERVAL_S, float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether the records may be read now."""
        return self._clock() >= self.next_at

    def expect_change(self) -> None:
        """Return to the shortest interval, because jobs were submitted."""
        self._interval_s = MIN_RECORD_POLL_INTERVAL_S
        self.next_at = self._clock() + self._interval_s

    def record(self, took_s: float, *, has_changed: bool) -> None:
        """Count a poll that took `took_s` seconds."""
        longer_s = min(self._max_interval_s, self._interval_s * 1.3)
        self._interval_s = MIN_RECORD_POLL_INTERVAL_S if has_changed else longer_s
        self.next_at = self._clock() + max(self._interval_s, POLL_BACKOFF_FACTOR * took_s)


class RequestBudget:
    """Decides which requests a launch may send now. `poll_s`, if set, is the shortest time between two polls."""

    def __init__(self, clock: Callable[[], float], poll_s: float | None = None):
        self._clock, self._poll_s = clock, poll_s
        now = clock()
        self._extra_polls = _Bucket(EXTRA_POLLS_PER_MIN if poll_s is None else 0, 60.0, now)
        self._submissions = _Bucket(SUBMISSION_BURST, SUBMIT_INTERVAL_S, now)
        self._next_extra_poll = self._next_poll = float("-inf")
        self._backoff_s = 0.0
        """Shortest time in seconds between polls while the controller is slow or does not answer."""
        self.submitted_at = float("-inf")
        """Time of the last call of sbatch."""

    def may_poll(self, *, is_news_due: bool = False) -> bool:
        """Return whether the jobs' states may be queried now. `is_news_due` allows extra polls."""
        now = self._clock()
        self._extra_polls.fill(now)
        return now >= self._next_poll or (is_news_due and now >= self._next_extra_poll and self._extra_polls.has_any)

    def record_poll(self, took_s: float, *, has_answered: bool) -> None:
        """Count a poll of the jobs' states that took `took_s` seconds."""
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
        """Count a query for the user's number of jobs, which costs as much as a poll."""
        self._extra_polls.fill(self._clock())
        if self._extra_polls.has_any:
            self._extra_polls.take()
        else:
            self._next_poll = max(self._next_poll, self._clock()) + (self._poll_s or QUEUE_POLL_INTERVAL_S)

    def may_submit(self, *, is_full: bool) -> bool:
        """Return whether sbatch may be called now. `is_full` means that the queue has no space for all jobs."""
        now = self._clock()
        self._submissions.fill(now)
        return now - self.submitted_at >= FULL_SUBMIT_INTERVAL_S if is_full else self._submissions.has_any

    def record_submission(self, number: int = 1) -> None:
        """Count `number` calls of sbatch."""
        self._submissions.take(number)
        self.submitted_at = self._clock()
