"""The SLURM jobs that a launch watches. One query in a separate thread polls the states of all of them."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from depthrate.orchestrator.executors.base import SubmittedPack
from depthrate.orchestrator.executors.slurm.request_rate import RequestBudget
from depthrate.orchestrator.executors.slurm.submissions import Submission, is_alive
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import JobState, parse_array_id, sacct_states, squeue_states
from depthrate.slurm.profile import CHECKPOINT_GRACE_S
from depthrate.slurm.script import read_failed_starts
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, StoreError

log = logging.getLogger("depthrate")
UNKNOWN_TIMEOUT_S = 20.0
"""Time in seconds for which a job must be unknown to squeue and sacct before it counts as over."""
ANSWER_WAIT_S = 1.0
"""Seconds for which a poll waits for the controller's answer, which usually takes 0.1 s. A later poll reads a slower answer.
"""


@dataclass
class WatchedJob:
    """A job of an array, with its packs that have not ended."""

    job_id: str
    submission: Submission
    packs: list[SubmittedPack]
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    unknown_since: float | None = None
    over_since: float | None = None
    """Time on our clock at which it was first seen to be over."""
    has_begun: bool = False
    """True once any of its packs has written a record."""
    current: dict[str, str] = field(default_factory=dict)
    """Attempt as submitted -> current attempt, of packs that have started."""
    failed_start: str | None = None
    """Last lines of its stderr, if its batch script reports that it failed before depthrate started."""

    @property
    def is_waiting(self) -> bool:
        """Whether the job waited in the queue when last polled."""
        return self.unknown_since is None and self.state.phase == "waiting"

    @property
    def is_running(self) -> bool:
        """Whether the job ran when last polled."""
        return self.unknown_since is None and self.state.phase == "running"


class _Query(threading.Thread):
    """Thread that queries the controller for jobs' states, and the accounting for jobs that the controller has forgotten."""

    def __init__(self, job_ids: Collection[str]):
        super().__init__(daemon=True)
        self.job_ids = list(job_ids)
        self.states: dict[str, JobState] = {}
        self.error: Exception | None = None
        self.took_s = 0.0

    def run(self) -> None:
        started = time.monotonic()
        try:
            self.states = squeue_states(self.job_ids)
            self.took_s = time.monotonic() - started
            self.states |= accounted_states([job_id for job_id in self.job_ids if job_id not in self.states])
        except Exception as error:
            self.took_s = time.monotonic() - started
            self.error = error


class JobQueue:
    """Watched jobs, with their states from the controller and the accounting. Submissions without live jobs are deleted."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        grace_s: float = CHECKPOINT_GRACE_S,
        poll_s: float | None = None,
    ):
        """Args: folder: folder of the sweep's job folders."""
        self._store = store
        self.jobs: dict[str, WatchedJob] = {}
        self.adopted: dict[str, SubmittedPack] = {}
        """Attempt -> pack of the live packs that other launches submitted."""
        self._finished: list[Submission] = []
        """Finished submissions of earlier launches that are still in the store."""
        self.folders = {folder}
        """Folders that may contain folders of finished jobs."""
        self.requests = RequestBudget(clock, poll_s)
        self._grace_s = grace_s
        self._clock = clock
        self._query: _Query | None = None
        self._has_failed = False
        """True if the last completed query failed. The failure has been logged."""
        self.is_away = False
        """True if the last query failed or has not been answered yet."""
        self.restarted: list[tuple[WatchedJob, str]] = []
        """(job, node) of the restarts by SLURM since the caller last removed them."""
        self._answered_at = self._answered_at_time = float("-inf")
        """Time of the last answer, on our clock and in seconds since the epoch."""

    def alive(self) -> list[str]:
        """Return the jobs that are not over."""
        return [job_id for job_id, job in self.jobs.items() if not self.is_over(job)]

    def watch(self, submission: Submission) -> None:
        """Watch the jobs of a new submission."""
        self.jobs |= {job_id: WatchedJob(job_id, submission, list(packs)) for job_id, packs in submission.jobs()}

    def adopt(self, submissions: Sequence[Submission], states: Mapping[str, JobState]) -> None:
        """Watch the live jobs of other launches. Finished submissions are deleted by `delete_finished`.

        Committed packs are not watched, even if their job still runs other packs.
        """
        committed: set[str] = set()
        if any(is_alive(state) for state in states.values()):
            with suppress(OSError, StoreError):  # an unreadable store only delays a result
                committed = take_snapshot(self._store).trial_ids()
        for submission in reversed(submissions):  # if a trial was submitted several times, the latest submission counts
            for job_id, packs in submission.jobs():
                pending = [pack for pack in packs if not committed.issuperset(pack.trial_ids)]
                if pending and is_alive(states.get(job_id)):
                    self.jobs[job_id] = WatchedJob(job_id, submission, pending, states[job_id])
                    self.adopted |= {pack.attempt_id: pack for pack in pending}
            is_watched = any(job.submission is submission for job in self.jobs.values())
            if not is_watched and (submission.job_ids or submission.was_never_accepted(time.time())):
                self._finished.append(submission)

    def delete_finished(self) -> None:
        """Delete finished submissions of earlier launches. Not part of `adopt`, because plans only read the store."""
        while self._finished:
            self._delete(self._finished.pop())

    def forget(self, job: WatchedJob) -> None:
        """Stop watching a job, and delete its submission with its last job."""
        del self.jobs[job.job_id]
        if not any(other.submission is job.submission for other in self.jobs.values()):
            try:
                self._delete(job.submission)
            except OSError as error:
                log.warning("cannot delete the finished submission %s: %s", job.submission.name, error)

    def _delete(self, submission: Submission) -> None:
        submission.delete(self._store)
        self.folders.add(Path(submission.folder).parent)

    def drop_pack(self, attempt_id: str) -> WatchedJob | None:
        """Stop watching a started pack. Return its job if that runs nothing else."""
        for job in self.jobs.values():
            if attempt_id in job.current:
                del job.current[attempt_id]
                job.packs = [pack for pack in job.packs if pack.attempt_id != attempt_id]
                return None if job.packs else job
        return None

    def waiting_reasons(self) -> Counter[str]:
        """Return the reasons why jobs wait, each with its number of jobs."""
        reasons = Counter(job.state.reason for job in self.jobs.values() if job.is_waiting)
        return Counter({reason: count for reason, count in reasons.items() if reason not in ("", "None")})

    def states(self) -> dict[str, str]:
        """Map each job to its last polled state."""
        return {job_id: job.state.state for job_id, job in self.jobs.items()}

    def is_over(self, job: WatchedJob) -> bool:
        """Return whether a job is over, or has been unknown for `UNKNOWN_TIMEOUT_S`."""
        if job.failed_start is not None:
            return True
        if job.unknown_since is not None:
            return self._answered_at - job.unknown_since >= UNKNOWN_TIMEOUT_S
        return job.state.phase == "over"

    def is_settled(self, job: WatchedJob) -> bool:
        """Return whether a job has been over for longer than its last writes take to become visible."""
        since = job.over_since if job.unknown_since is None else job.unknown_since
        return since is not None and self.is_over(job) and self._clock() - since >= self._grace_s

    def overdue(self, limit_s: float, at: float | None = None) -> list[WatchedJob]:
        """Return the jobs that run after their time limit at the last answer, or else `at`. SLURM kills up to 30 s late."""
        until = (self._answered_at_time if at is None else at) - limit_s
        return [job for job in self.jobs.values() if job.is_running and (job.state.started_at or math.inf) < until]

    def read_failed_starts(self) -> None:
        """Read the batch scripts' reports of jobs that failed before depthrate started in them."""
        for folder in {job.submission.folder for job in self.jobs.values()}:
            for job_id, state, stderr in read_failed_starts(Path(folder)):
                job = self.jobs.get(job_id)
                if job is not None and (state.restarts or 0) >= (job.state.restarts or 0):
                    job.failed_start, job.unknown_since = stderr, None
                    job.state = replace(state, ended_at=job.state.ended_at, started_at=job.state.started_at)

    def poll_if_due(self, *, is_news_due: bool = False) -> None:
        """Query the jobs' states if the request budget allows it, and apply an answer that has arrived."""
        if self._query is not None:
            self._take_answer(0.0)
        elif self.requests.may_poll(is_news_due=is_news_due):
            self._query = _Query(self.jobs)
            self._query.start()
            self._take_answer(ANSWER_WAIT_S)

    def _take_answer(self, timeout_s: float) -> None:
        if self._query is None:
            return
        self._query.join(timeout_s)
        if self._query.is_alive():
            self.is_away = True
            return
        query, self._query = self._query, None
        self.requests.record_poll(query.took_s, has_answered=query.error is None)
        if query.error is not None and not isinstance(query.error, SlurmError):
            raise query.error
        if query.error is not None and not self._has_failed:
            log.warning("cannot poll the SLURM queue (jobs keep running): %s", query.error)
        self.is_away = self._has_failed = query.error is not None
        if not self.is_away:
            self._update(query)

    def _update(self, query: _Query) -> None:
        self._answered_at = now = self._clock()
        self._answered_at_time = time.time()
        arrays = {parse_array_id(job_id) for job_id in query.states}
        for job_id in query.job_ids:
            job = self.jobs.get(job_id)
            if job is None:
                continue
            state = query.states.get(job_id)
            if state is None and job.is_waiting and not job.state.restarts and parse_array_id(job_id) in arrays:
                state = JobState("CANCELLED")  # a single element cancelled while waiting is not listed anywhere
            if state is None:
                job.unknown_since = now if job.unknown_since is None else job.unknown_since
                continue
            restarts = job.state.restarts if state.restarts is None else state.restarts
            if (restarts or 0) > (job.state.restarts or 0) and job.failed_start is None:
                self.restarted.append((job, job.state.node))
            job.state = replace(state, restarts=restarts, node=state.node or job.state.node)
            job.unknown_since = None
            job.over_since = None if state.phase != "over" else now if job.over_since is None else job.over_since


def accounted_states(job_ids: Collection[str]) -> dict[str, JobState]:
    """Map jobs that the controller has forgotten, and that are over according to the accounting, to their states."""
    try:
        states = sacct_states(job_ids) if job_ids else {}
    except SlurmError as error:
        log.info("no accounting: %s", error)
        return {}
    # The accounting may lag: a job that the controller has forgotten is not alive.
    return {job_id: states[job_id] for job_id in job_ids if job_id in states and states[job_id].phase == "over"}
