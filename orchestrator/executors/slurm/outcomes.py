"""Outcomes of packs on a SLURM cluster, from the attempt records, their heartbeats and the scheduler's job states.

`OUTCOME_RULES` is the complete decision table. Results are in the store, so the scheduler only decides about packs without an
end in their record, and a pack counts as lost only when its heartbeat has stopped too. A missing record proves nothing for a
while: on a shared file system, writes of a node may become visible half a minute late.
"""

import logging
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from depthrate.orchestrator.attempts.liveness import heartbeat_s, stale_after_s
from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.orchestrator.attempts.record import (
    SchedulerFacts,
    lost_attempt,
    nth_attempt_id,
    read_attempt,
    write_lost,
)
from depthrate.orchestrator.executors.base import AttemptEnd, RequeueReason, SubmittedPack
from depthrate.orchestrator.executors.slurm.submissions import Submission
from depthrate.orchestrator.executors.slurm.watched_jobs import WatchedJob
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import JobState, earlier_starts
from depthrate.slurm.profile import CHECKPOINT_GRACE_S, Profile
from depthrate.storage.attempts.records import Record, RecordReader
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")

FRESH_WITHIN_S = 10.0
"""A record that is first seen within this many seconds of its writing indicates a store without lag."""
LATE_AFTER_S = 3.0
"""A record that was missed by a scan this many seconds after its writing indicates a store with lag."""
MAX_START_S = 300.0
"""Longest time in seconds from a job's start to its first attempt. Longer gaps belong to another start."""
EARLY_S = 60.0
"""Longest time in seconds by which SLURM's warning of a time limit can be early."""
_MEMORY = re.compile(r"oom[-_ ]?kill|exceeded .*memory limit|out of memory", re.IGNORECASE)


class Outcome(StrEnum):
    """Decision about a pack of a job."""

    PENDING = "not ended"
    RECORDED = "end in the record"
    COMMITTED = "committed, nothing to do"
    INTERRUPTED = "requeued: interrupted"
    CUT_OFF = "requeued: time limit, resumes"
    NOT_STARTED = "requeued: not started"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_BEGUN = "not_begun"
    BY_STATE = "failure kind of the job state"


class Condition(StrEnum):
    """Condition of an outcome rule in addition to the record and the job state."""

    LIVE = "the job is not over"
    KNOWN = "the scheduler still lists the job"
    CURRENT = "the record is from the job's last start, or final"
    NOT_FINAL = "records may still appear: the grace period has not passed"
    HEARTBEAT_FRESH = "the heartbeat is fresh, and the job may still have processes"
    COMMITTED = "all trials are committed"
    NO_PROGRESS = "half of the time limit or more without a checkpoint or finished trial"
    MEMORY_EXCEEDED = "the job state or stderr reports that memory ran out"
    JOB_STARTED = "depthrate started in the job"
    JOB_NOT_STARTED = "depthrate did not start in the job"


class OutcomeRule(NamedTuple):
    """One row of `OUTCOME_RULES`. An empty column matches everything."""

    record: tuple[AttemptState | None, ...]
    """State in the attempt record. None means a missing record."""
    job: tuple[str, ...]
    """Last state of the job in the scheduler."""
    conditions: tuple[Condition, ...]
    outcome: Outcome


_RUNNING, _INTERRUPTED = AttemptState.RUNNING, AttemptState.INTERRUPTED
_ENDED = (AttemptState.DONE, AttemptState.FAILED, AttemptState.LOST)
OUTCOME_RULES = (
    OutcomeRule(_ENDED, (), (), Outcome.RECORDED),
    OutcomeRule((), (), (Condition.LIVE,), Outcome.PENDING),
    OutcomeRule((_INTERRUPTED,), ("CANCELLED", "DEADLINE"), (Condition.CURRENT, Condition.KNOWN), Outcome.CANCELLED),
    OutcomeRule((_INTERRUPTED,), ("COMPLETED", "TIMEOUT"), (Condition.CURRENT, Condition.NO_PROGRESS), Outcome.TIMEOUT),
    OutcomeRule((_INTERRUPTED,), (), (Condition.CURRENT,), Outcome.INTERRUPTED),
    OutcomeRule((), (), (Condition.NOT_FINAL,), Outcome.PENDING),
    OutcomeRule((_RUNNING,), (), (Condition.HEARTBEAT_FRESH,), Outcome.PENDING),
    OutcomeRule((), (), (Condition.COMMITTED,), Outcome.COMMITTED),
    OutcomeRule((None,), (), (Condition.JOB_STARTED, Condition.MEMORY_EXCEEDED), Outcome.NOT_STARTED),
    OutcomeRule((), (), (Condition.MEMORY_EXCEEDED,), Outcome.OUT_OF_MEMORY),
    OutcomeRule((_RUNNING, _INTERRUPTED), ("TIMEOUT",), (Condition.KNOWN, Condition.NO_PROGRESS), Outcome.TIMEOUT),
    OutcomeRule((_RUNNING, _INTERRUPTED), ("TIMEOUT",), (Condition.KNOWN,), Outcome.CUT_OFF),
    OutcomeRule((None,), ("COMPLETED", "TIMEOUT"), (Condition.JOB_STARTED,), Outcome.NOT_STARTED),
    OutcomeRule((), ("FAILED",), (Condition.JOB_NOT_STARTED, Condition.KNOWN), Outcome.NOT_BEGUN),
    OutcomeRule((), (), (), Outcome.BY_STATE),
)
"""Outcome of a pack by its attempt record, its job's state and further conditions. The first matching rule applies."""
_KINDS: dict[Outcome, FailureKind | RequeueReason] = {
    Outcome.NOT_STARTED: RequeueReason.NOT_STARTED,
    Outcome.CANCELLED: FailureKind.CANCELLED,
    Outcome.TIMEOUT: FailureKind.TIMEOUT,
    Outcome.OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
    Outcome.NOT_BEGUN: FailureKind.NOT_BEGUN,
}


@dataclass(frozen=True)
class _Evidence:
    """Known facts about a pack of a job, collected before `OUTCOME_RULES` is applied."""

    job: WatchedJob
    pack: SubmittedPack
    attempt_id: str
    """Latest attempt with a record, or the submitted attempt."""
    record: Record
    """Its record. Read again, with the last heartbeat, before the attempt may count as lost."""
    is_over: bool
    is_settled: bool
    is_last_start: bool

    @property
    def state(self) -> AttemptState | None:
        """State in the record, or None without one."""
        return self.record.get("state")

    @cached_property
    def stderr(self) -> str:
        """Tail of the job's stderr."""
        if self.job.failed_start is not None:
            return self.job.failed_start
        return self.job.submission.read_stderr(self.job.job_id) if self.job.state.node else ""


class PackOutcomes:
    """Determines which packs of a job have ended, and how. Counts starts and early ends per node in `nodes`."""

    def __init__(self, store: Store, sweep: str, nodes: StartFailures, profile: Profile | None = None):
        self._store, self._sweep = store, sweep
        self._profile = profile
        """Resources of the jobs, if known."""
        self.nodes = nodes
        self._cache = SnapshotCache()
        self._reader = RecordReader(store, sweep, beats=False)
        self._records: dict[str, Record] | None = None
        """Attempt -> record at the last refresh. Before the first refresh, records are read one by one."""
        self._committed: set[str] | None = None
        self.earlier_ends: list[AttemptEnd] = []
        """Ends of earlier starts of requeued jobs, removed by the caller that counts them."""
        self._refreshed_at: float | None = None
        self._is_fresh, self._is_late = False, False
        """Evidence of a store without lag (a record seen soon after its writing) and with lag (a later refresh missed one).
        """
        self.any_interrupted = False
        """True if, at the last refresh, a pack was interrupted while its job was still believed to run."""
        self._closed_ids: set[str] = set()
        """Attempts of earlier starts whose ends are in the store."""

    @property
    def is_fresh(self) -> bool:
        """Whether writes of nodes are visible to this process without lag, according to the records of this launch."""
        return self._is_fresh and not self._is_late

    def refresh(self, jobs: Iterable[WatchedJob] = ()) -> None:
        """Drop cached facts, and read the changed records of these jobs in one batch."""
        self._committed = None
        self.any_interrupted = False
        wanted = {attempt_path(self._sweep, name) for job in jobs for name in _possible_attempt_ids(job)}
        if wanted:
            with suppress(OSError):
                records = self._reader.refresh(wanted.__contains__).values()
                seen = self._records or {}
                self._update_lag({r["attempt_id"]: r["started_at"] for r in records if r["attempt_id"] not in seen})
                self._records = {record["attempt_id"]: record for record in records}

    def _update_lag(self, started_at: Mapping[str, float]) -> None:
        """Update the estimate of the store's lag from new records: attempt -> time of writing."""
        now, previous = time.time(), self._refreshed_at
        if previous is not None:
            self._is_fresh |= any(previous < at <= now < at + FRESH_WITHIN_S for at in started_at.values())
            self._is_late |= any(at < previous - LATE_AFTER_S for at in started_at.values())
        self._refreshed_at = now

    def pop_ended(self, job: WatchedJob, slots: int, *, is_over: bool, is_settled: bool) -> list[AttemptEnd]:
        """Remove the ended packs from a job that runs `slots` packs in parallel, and return their ends.

        Records of a job that is over may not be visible until it `is_settled`.
        """
        if job.state.phase == "waiting" and not is_over:
            if job.state.restarts:
                job.current.clear()
            elif self._records is None or self._records.keys().isdisjoint(_possible_attempt_ids(job)):
                return []  # no record since the last poll
        if job.state.restarts and (is_over or job.is_running):
            self._write_earlier_ends(job)
        is_settled |= is_over and self.is_fresh and _is_definite(job)
        ends: list[AttemptEnd] = []
        remaining = []
        for position, pack in enumerate(job.packs):
            if not is_over and position >= slots + len(ends):
                remaining += job.packs[position:]  # packs run in order, so these cannot have started
                break
            end = self._end_of(job, pack, is_over, is_settled)
            if end is None:
                remaining.append(pack)
            else:
                ends.append(end)
                job.current.pop(pack.attempt_id, None)
        job.packs = remaining
        if is_over and not job.has_begun and job.state.state == "FAILED":  # provisional until the job is settled
            self.nodes.record_failure(job.state.node, job.job_id)
        return ends

    def pop_committed(self, job: WatchedJob) -> list[AttemptEnd]:
        """Remove packs with committed trials from a job, whatever their attempts' state, and return them as ends."""
        done = [pack for pack in job.packs if self._is_committed(pack)]
        job.packs = [pack for pack in job.packs if pack not in done]
        return [AttemptEnd(pack.attempt_id, kind=RequeueReason.NOT_STARTED) for pack in done]

    def _end_of(self, job: WatchedJob, pack: SubmittedPack, is_over: bool, is_settled: bool) -> AttemptEnd | None:
        """Return the end of a pack by `OUTCOME_RULES`, or None if it has not ended."""
        evidence = self._collect_evidence(job, pack, is_over, is_settled)
        self._note_start(evidence)
        outcome = next(
            rule.outcome
            for rule in OUTCOME_RULES
            if (not rule.record or evidence.state in rule.record)
            and (not rule.job or job.state.state in rule.job)
            and all(self._holds(condition, evidence) for condition in rule.conditions)
        )
        return self._make_end(outcome, evidence)

    def _collect_evidence(self, job: WatchedJob, pack: SubmittedPack, is_over: bool, is_settled: bool) -> _Evidence:
        restarts = job.state.restarts or 0
        attempt_id, record = self._newest_record(pack, restarts)
        may_be_lost = is_over and record.get("state") is AttemptState.RUNNING and (is_settled or _never_ran(job))
        if may_be_lost and self._records is not None:
            record = read_attempt(self._store, self._sweep, attempt_id) or record
        is_last_start = attempt_id == nth_attempt_id(pack.attempt_id, restarts)
        return _Evidence(job, pack, attempt_id, record, is_over, is_settled, is_last_start)

    def _note_start(self, evidence: _Evidence) -> None:
        """Count the start of depthrate in a job, and remember the pack's current attempt."""
        job, record, state = evidence.job, evidence.record, evidence.state
        if state is None:
            return
        if record.get("error_kind") not in (FailureKind.NOT_BEGUN, FailureKind.FAILED_TO_START_ANYWHERE):
            if not job.has_begun:
                self.nodes.record_start(job.state.node, job.job_id)
            job.has_begun = True
        job.current[evidence.pack.attempt_id] = evidence.attempt_id
        is_interrupted = state is AttemptState.INTERRUPTED and evidence.is_last_start
        self.any_interrupted |= is_interrupted and not evidence.is_over

    def _holds(self, condition: Condition, evidence: _Evidence) -> bool:
        job, state = evidence.job, evidence.state
        match condition:
            case Condition.LIVE:
                return not evidence.is_over
            case Condition.KNOWN:
                return job.unknown_since is None
            case Condition.CURRENT:
                return evidence.is_settled or evidence.is_last_start
            case Condition.NOT_FINAL:
                # a cancelled job without a record stays cancelled, whatever it may have done
                is_cancelled = state is None and job.state.kind == FailureKind.CANCELLED
                return not (evidence.is_settled or is_cancelled or _never_ran(job))
            case Condition.HEARTBEAT_FRESH:
                return self._has_fresh_heartbeat(evidence)
            case Condition.COMMITTED:
                return self._is_committed(evidence.pack)
            case Condition.NO_PROGRESS:
                record = evidence.record
                has_progressed = record.get("checkpoints") or record.get("trials_done")
                return not has_progressed and self._used_half_its_time(record)
            case Condition.MEMORY_EXCEEDED:
                return _failure_kind(job, evidence.stderr) is FailureKind.OUT_OF_MEMORY
            case Condition.JOB_STARTED:
                return job.has_begun
            case Condition.JOB_NOT_STARTED:
                return not job.has_begun

    def _has_fresh_heartbeat(self, evidence: _Evidence) -> bool:
        """Return whether an attempt is alive although its job is over, by its latest heartbeat."""
        age_s = time.time() - (evidence.record.get("heartbeat_at") or 0.0)
        interval_s = evidence.record.get("beat_s") or heartbeat_s(self._store)
        return age_s < stale_after_s(interval_s) and not _is_definite(evidence.job)

    def _make_end(self, outcome: Outcome, evidence: _Evidence) -> AttemptEnd | None:
        job, record = evidence.job, evidence.record
        submitted_id, attempt_id = evidence.pack.attempt_id, evidence.attempt_id
        if outcome is Outcome.PENDING:
            return None
        if outcome is Outcome.RECORDED:
            node = record.get("host") or job.state.node
            return AttemptEnd(submitted_id, latest_id=attempt_id, record=record, node=node)
        if outcome is Outcome.COMMITTED:
            if evidence.state is AttemptState.RUNNING:  # another attempt committed the trials first
                self._write_end(record, _failure_kind(job, ""), _describe_end(job), job.state)
            return AttemptEnd(submitted_id, kind=RequeueReason.NOT_STARTED)
        if outcome is Outcome.INTERRUPTED:
            return AttemptEnd(submitted_id, latest_id=attempt_id)
        if outcome is Outcome.CUT_OFF:
            return AttemptEnd(submitted_id, kind=RequeueReason.CUT_OFF, latest_id=attempt_id)
        if outcome is Outcome.CANCELLED:
            message = _describe_end(job)
        elif outcome is Outcome.TIMEOUT:
            message = self._describe_timeout(job)
        else:
            message = self._describe_loss(job, evidence.stderr)
        kind = _KINDS.get(outcome) or _failure_kind(job, evidence.stderr)
        facts = self._scheduler_facts(job, record)
        return AttemptEnd(submitted_id, message, kind, attempt_id, node=job.state.node, scheduler_facts=facts)

    def _is_committed(self, pack: SubmittedPack) -> bool:
        if self._committed is None:
            try:
                self._committed = take_snapshot(self._store, cache=self._cache).trial_ids()
            except (OSError, StoreError):
                return False
        return self._committed.issuperset(pack.trial_ids)

    def _limit_text(self) -> str:
        return "" if self._profile is None else f" of {self._profile.walltime_min} min"

    def _describe_loss(self, job: WatchedJob, stderr: str) -> str:
        """Return the message for a pack whose job ended without recording the pack's end."""
        kind, message = _failure_kind(job, stderr), _describe_end(job)
        if kind is FailureKind.OUT_OF_MEMORY:
            match = re.search(r"exceeded memory limit \((\d+) > (\d+)\)", stderr)
            used = f", {int(match[1]) / 2**30:.3g} of {int(match[2]) / 2**30:.3g} GB used" if match else ""
            return f"{message}: out of memory{used}. Increase mem_gb, or use smaller packs."
        if kind is FailureKind.TIMEOUT:
            limit = f"{self._limit_text()}{_run_time_text(job)}"
            return f"{message}: reached its time limit{limit} before doing anything. Increase walltime_min."
        if kind is not FailureKind.CANCELLED and stderr.strip():
            return f"{message}: {_stderr_tail(stderr)}"
        return message

    def _describe_timeout(self, job: WatchedJob) -> str:
        """Return the message for a pack that used a job's time without saving anything."""
        node = f" on {job.state.node}" if job.state.node else ""
        return (
            f"job {job.job_id} reached its time limit{self._limit_text()} before the task saved anything{node}"
            f"{_run_time_text(job)}, so it would restart from the beginning in each job. Increase walltime_min, or save "
            "checkpoints in the task (context.checkpoint_due, save_checkpoint)."
        )

    def _write_earlier_ends(self, job: WatchedJob) -> None:
        """Write the ends of attempts that ran when their job was requeued, once the next start has a record."""
        open_records = []
        for pack in job.packs:
            newest, _ = self._newest_record(pack, job.state.restarts or 0)
            for restart in range(job.state.restarts or 0):
                attempt_id = nth_attempt_id(pack.attempt_id, restart)
                record = (self._records or {}).get(attempt_id)
                if attempt_id == newest or attempt_id in self._closed_ids or record is None:
                    continue
                if record["state"] is AttemptState.RUNNING:
                    open_records.append((restart, record))
                else:
                    self._closed_ids.add(attempt_id)
        if not open_records:
            return
        starts: list[JobState] = []
        with suppress(SlurmError):
            starts = earlier_starts([job.job_id])[job.job_id]
        for restart, record in open_records:
            start = starts[restart] if restart < len(starts) else JobState("", node=record["host"] or "")
            kind = FailureKind.NODE_LOST if start.state == "NODE_FAIL" else FailureKind.PREEMPTED
            how = f"ended as {start.state}" if start.state else "ended for an unknown cause"
            message = f"job {job.job_id} {how} on {start.node}, and was restarted"
            if self._write_end(record, kind, message, start):
                attempt_id, node = record["attempt_id"], record["host"] or start.node
                self._closed_ids.add(attempt_id)
                # no submitted ID, because the first start has the ID of the whole job, which still runs
                facts = SchedulerFacts(ended_at=start.ended_at)
                end = AttemptEnd("", message, kind, latest_id=attempt_id, node=node, scheduler_facts=facts)
                self.earlier_ends.append(end)

    def _write_end(self, record: Record, kind: FailureKind, message: str, state: JobState) -> bool:
        """Write the end of an attempt that no driver waits for, and return whether that succeeded."""
        # The attempt's hours end with its job. The first attempt in a slot includes the start-up of the job.
        started_at = state.started_at if self._is_first_in_slot(record, state) else None
        facts = SchedulerFacts(started_at=started_at, ended_at=state.ended_at)
        lost = lost_attempt(record["attempt_id"], self._sweep, record, kind=kind, error=message, facts=facts)
        try:
            write_lost(self._store, lost)
        except OSError as error:
            log.info("cannot write the end of attempt %s: %s", record["attempt_id"], error)
            return False
        return True

    def _scheduler_facts(self, job: WatchedJob, record: Record) -> SchedulerFacts:
        """Return the scheduler's facts about an attempt. Its start is included only if it was the first in its slot."""
        state = job.state
        started_at = state.started_at if not record or self._is_first_in_slot(record, state) else None
        return SchedulerFacts(host=state.node, job_id=job.job_id, pid=0, started_at=started_at, ended_at=state.ended_at)

    def _is_first_in_slot(self, record: Record, state: JobState) -> bool:
        """Return whether an attempt was the first in its slot after the start of the job."""
        if state.started_at is None or not 0 <= record["started_at"] - state.started_at < MAX_START_S:
            return False
        of_job = (r["started_at"] for r in (self._records or {}).values() if r["job_id"] == record["job_id"])
        first = min((at for at in of_job if at >= state.started_at), default=record["started_at"])
        return record["started_at"] - first < LATE_AFTER_S

    def _used_half_its_time(self, record: Record) -> bool:
        """Return whether a pack had at least half of a job's time. One that followed other packs may have had only seconds."""
        if self._profile is None:
            return True
        ran_s = (record.get("ended_at") or record.get("heartbeat_at") or 0.0) - (record.get("started_at") or 0.0)
        return ran_s >= (60 * self._profile.walltime_min - self._profile.warning_s - EARLY_S) / 2

    def _newest_record(self, pack: SubmittedPack, restarts: int) -> tuple[str, Record]:
        """Return (attempt, record) of a pack's last start with a record, or (submitted attempt, {})."""
        for restart in range(restarts + 1, -1, -1):  # one restart more than known: the job may just have restarted
            attempt_id = nth_attempt_id(pack.attempt_id, restart)
            records = self._records
            record = read_attempt(self._store, self._sweep, attempt_id) if records is None else records.get(attempt_id)
            if record is not None:
                return attempt_id, record
        return pack.attempt_id, {}


def list_unreported_ends(
    store: Store, sweep: str, submissions: Sequence[Submission], states: Mapping[str, JobState]
) -> list[Record]:
    """Return records of packs whose jobs ended without writing a record, and that no launch has written since."""
    records = []
    outcomes = PackOutcomes(store, sweep, StartFailures(0))
    for submission in submissions:
        for job_id, packs in submission.jobs():
            state = states.get(job_id)
            if state is None or state.phase != "over":
                continue
            job = WatchedJob(job_id, submission, list(packs), state)
            is_settled = state.ended_at is not None and time.time() - state.ended_at >= CHECKPOINT_GRACE_S
            by_attempt = {pack.attempt_id: pack for pack in packs}
            for end in outcomes.pop_ended(job, 1, is_over=True, is_settled=is_settled):
                if end.exit_message is not None and isinstance(end.kind, FailureKind):
                    record, error = read_attempt(store, sweep, end.last_attempt_id), end.exit_message
                    pack = by_attempt[end.attempt_id]
                    facts = replace(
                        end.scheduler_facts, pack_id=pack.pack_id, trial_ids=pack.trial_ids, code_hash=pack.code_hash
                    )
                    lost = lost_attempt(end.last_attempt_id, sweep, record, kind=end.kind, error=error, facts=facts)
                    records.append(asdict(lost))
    return records


def _possible_attempt_ids(job: WatchedJob) -> Iterator[str]:
    """Yield the IDs of attempts that may have written a record about a job's packs."""
    for pack in job.packs:
        for restart in range((job.state.restarts or 0) + 2):  # one restart more than known (see `_newest_record`)
            yield nth_attempt_id(pack.attempt_id, restart)


def _never_ran(job: WatchedJob) -> bool:
    """Return whether, according to the scheduler, depthrate never ran in a job that is over."""
    never_had_a_node = job.unknown_since is None and not job.state.node and not job.state.restarts
    return job.failed_start is not None or job.state.failed_in_setup or (never_had_a_node and not job.has_begun)


def _failure_kind(job: WatchedJob, stderr: str) -> FailureKind:
    """Return the failure kind of a job that is over, including running out of memory if only stderr shows it."""
    if job.unknown_since is not None:
        return FailureKind.WORKER_LOST
    if job.state.kind == FailureKind.WORKER_LOST and _MEMORY.search(stderr):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind(job.state.kind)


def _is_definite(job: WatchedJob) -> bool:
    """Return whether the end of a job proves that its processes are gone."""
    return job.unknown_since is None and job.state.is_definite


def _describe_end(job: WatchedJob) -> str:
    """Describe the end of a job: its state, node and exit status."""
    node = f" on {job.state.node}" if job.state.node else ""
    if job.unknown_since is not None:
        return f"job {job.job_id} is gone{node}"
    ended = "was cancelled" if job.state.state == "CANCELLED" else f"ended as {job.state.state}"
    message = f"job {job.job_id} {ended}{node}"
    if job.state.state == "CANCELLED" or not job.state.is_definite or job.state.failed_in_setup:
        return message
    if job.state.signal:
        with suppress(ValueError):
            return f"{message} by signal {job.state.signal} ({signal.Signals(job.state.signal).name})"
    return f"{message} with exit code {job.state.exit_code}" if job.state.exit_code else message


def _run_time_text(job: WatchedJob) -> str:
    """Return a job's run time in parentheses, if known."""
    if job.state.started_at is None or job.state.ended_at is None:
        return ""
    return f" (ran {(job.state.ended_at - job.state.started_at) / 60:.1f} min)"


def _stderr_tail(stderr: str) -> str:
    """Return the last lines of stderr, without SLURM's own messages about the end of the job unless it has no other lines."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    program_lines = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    return " / ".join((program_lines or lines)[-3:])
