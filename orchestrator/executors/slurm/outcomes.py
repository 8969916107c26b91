"""How a pack ended on a SLURM cluster: what its record says, and else what the scheduler says of its job.

What a job did stands in the store; what the scheduler says only matters for packs whose attempt has not written its own
end, and a pack counts as lost only when its heartbeat has stopped too. That nothing is seen is no evidence for a while: on a
shared file system what a node wrote may be seen half a minute late.
"""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from depthrate.orchestrator.attempts.liveness import heartbeat_s, stale_after_s
from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.orchestrator.attempts.record import lost_attempt, nth_attempt_id, read_attempt, write_lost
from depthrate.orchestrator.executors.base import AttemptEnd, RequeueReason
from depthrate.orchestrator.executors.slurm.queue import WatchedJob
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack
from depthrate.slurm.command import SlurmError
from depthrate.slurm.job_states import JobState, earlier_starts
from depthrate.slurm.profile import CHECKPOINT_GRACE_S, Profile
from depthrate.storage.attempts.records import Record, RecordReader
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")

FRESH_WITHIN_S, LATE_AFTER_S = 10.0, 3.0
"""A record that is seen so soon after it was written speaks for a store without lag; one that an earlier look has missed, which
came so long after it was written, against it."""
MAX_START_S = 300.0
"""Between a job's start and its first attempt's: an hour would be another start's."""
EARLY_S = 60.0
"""By how much SLURM may send the warning of a time limit too early."""
_MEMORY = re.compile(r"oom[-_ ]?kill|exceeded .*memory limit|out of memory", re.IGNORECASE)


class PackOutcomes:
    """Tells which packs of a job have ended, and how; what it sees of the nodes goes into `nodes`."""

    def __init__(self, store: Store, sweep: str, nodes: StartFailures, profile: Profile | None = None):
        self._store, self._sweep = store, sweep
        self._profile = profile
        """What the jobs asked for, where that is known."""
        self.nodes = nodes
        self._cache = SnapshotCache()
        self._reader = RecordReader(store, sweep, beats=False)
        self._records: dict[str, Record] | None = None
        """Attempt -> record at the last look; None before it: then each is asked for."""
        self._committed: set[str] | None = None
        self.earlier_ends: list[AttemptEnd] = []
        """Of starts before the last, which nobody waits for; whoever counts takes them out."""
        self._refreshed_at: float | None = None
        self._is_fresh, self._is_late = False, False
        """Whether a record was ever seen soon after it was written, and whether one was ever missed by a look after that."""
        self.any_interrupted = False
        """Whether, at the last look, a pack had saved its state to end while its job was believed to run."""
        self._closed_ids: set[str] = set()
        """Attempts of earlier starts of jobs whose ends stand in the store."""

    @property
    def is_fresh(self) -> bool:
        """Whether what nodes write is seen here at once, as far as the records of this launch show."""
        return self._is_fresh and not self._is_late

    def refresh(self, jobs: Iterable[WatchedJob] = ()) -> None:
        """Forget what was seen at the last look; what these jobs have written is then read at once, where it is new."""
        self._committed = None
        self.any_interrupted = False
        wanted = {attempt_path(self._sweep, name) for job in jobs for name in _possible_attempt_ids(job)}
        if wanted:
            with suppress(OSError):
                found = self._reader.refresh(wanted.__contains__).values()
                self._update_lag(
                    {r["attempt_id"]: r["started_at"] for r in found if r["attempt_id"] not in (self._records or ())}
                )
                self._records = {record["attempt_id"]: record for record in found}

    def _update_lag(self, new: Mapping[str, float]) -> None:
        """Learn from records that are seen for the first time how long after they were written that is."""
        now, before = time.time(), self._refreshed_at
        if before is not None:
            self._is_fresh |= any(before < at <= now < at + FRESH_WITHIN_S for at in new.values())
            self._is_late |= any(at < before - LATE_AFTER_S for at in new.values())
        self._refreshed_at = now

    def pop_ended(self, job: WatchedJob, slots: int, *, is_over: bool, is_settled: bool) -> list[AttemptEnd]:
        """Take the packs that ended out of a job, of which `slots` run at once, and return how.

        Until a job that is over `is_settled`, what it wrote may not be seen yet.
        """
        if job.state.phase == "waiting" and not is_over:
            if job.state.restarts:
                job.current.clear()
            elif not self._has_new_record(job):
                return []
        if job.state.restarts and (is_over or job.is_running):
            self._write_earlier_ends(job)
        is_settled |= is_over and self.is_fresh and _is_definite(job)
        ends: list[AttemptEnd] = []
        left = []
        for position, pack in enumerate(job.packs):
            if not is_over and position >= slots + len(ends):
                left += job.packs[position:]  # packs run in order: these cannot have started
                break
            end = self._end_of(job, pack, is_over, is_settled)
            if end is None:
                left.append(pack)
            else:
                ends.append(end)
                job.current.pop(pack.attempt_id, None)
        job.packs = left
        if is_over and not job.has_begun and job.state.state == "FAILED":  # a guess until it is settled
            self.nodes.record_failure(job.state.node, job.job_id)
        return ends

    def pop_committed(self, job: WatchedJob) -> list[AttemptEnd]:
        """Take the packs out of a job whose trials are committed, whatever became of their attempts; return them as ends."""
        done = [pack for pack in job.packs if self._is_committed(pack)]
        job.packs = [pack for pack in job.packs if pack not in done]
        return [AttemptEnd(pack.attempt_id, kind=RequeueReason.NOT_STARTED) for pack in done]

    def _has_new_record(self, job: WatchedJob) -> bool:
        """Whether a job has written since the controller was last asked for it."""
        return self._records is not None and not self._records.keys().isdisjoint(_possible_attempt_ids(job))

    def _end_of(self, job: WatchedJob, pack: SubmittedPack, is_over: bool, is_settled: bool) -> AttemptEnd | None:
        restarts = job.state.restarts or 0
        attempt_id, record = self._newest_record(pack, restarts)
        state = record.get("state")
        if state is not None and record.get("error_kind") not in (
            FailureKind.NOT_BEGUN,
            FailureKind.FAILED_TO_START_ANYWHERE,
        ):
            if not job.has_begun:
                self.nodes.record_start(job.state.node, job.job_id)
            job.has_begun = True
        if state in (AttemptState.DONE, AttemptState.FAILED, AttemptState.LOST):
            return AttemptEnd(
                pack.attempt_id, latest_id=attempt_id, record=record, node=record.get("host") or job.state.node
            )
        is_last_start = attempt_id == nth_attempt_id(pack.attempt_id, restarts)
        if state is AttemptState.INTERRUPTED and is_over and (is_settled or is_last_start):
            return self._interrupted(job, pack, attempt_id, record)
        if state is not None:
            job.current[pack.attempt_id] = attempt_id
            self.any_interrupted |= state is AttemptState.INTERRUPTED and is_last_start and not is_over
        is_cancelled = (
            state is None and job.state.kind == FailureKind.CANCELLED
        )  # and stays so, whatever it may have done
        if not is_over or not (is_settled or is_cancelled or _never_ran(job)):
            return None
        if state is AttemptState.RUNNING and self._records is not None:
            record = read_attempt(self._store, self._sweep, attempt_id) or record  # with what its node said since
        silent_s = time.time() - (record.get("heartbeat_at") or 0.0)
        says_it_runs = silent_s < stale_after_s(record.get("beat_s") or heartbeat_s(self._store)) and not _is_definite(
            job
        )
        if state is AttemptState.RUNNING and says_it_runs:
            return None  # the scheduler says it is over, its heartbeat says it is not
        if self._is_committed(pack):
            if state is AttemptState.RUNNING:  # another attempt was faster
                self._write_end(record, _failure_kind(job, ""), _describe_end(job), job.state)
            return AttemptEnd(pack.attempt_id, kind=RequeueReason.NOT_STARTED)
        return self._lost(job, pack, attempt_id, record)

    def _is_committed(self, pack: SubmittedPack) -> bool:
        if self._committed is None:
            try:
                self._committed = take_snapshot(self._store, cache=self._cache).trial_ids()
            except (OSError, StoreError):
                return False
        return self._committed.issuperset(pack.trial_ids)

    def _lost(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> AttemptEnd:
        """Return the end of a pack whose job is over without a word of its own."""
        is_known = job.unknown_since is None
        printed = job.submission.read_stderr(job.job_id) if job.state.node else ""
        kind: FailureKind | RequeueReason = _failure_kind(job, printed)
        how = _describe_end(job)
        if kind is FailureKind.OUT_OF_MEMORY:
            how += f": out of memory{_memory_text(printed)}; a larger mem_gb is needed, or smaller packs"
        elif kind is FailureKind.TIMEOUT:
            limit = "" if self._profile is None else f" of {self._profile.walltime_min} min"
            how += f": its time limit{limit}{_run_time_text(job)} came before anything was done; a longer "
            how += "walltime_min is needed"
        elif kind is not FailureKind.CANCELLED and printed.strip():
            how += f": {_stderr_tail(printed)}"
        if kind is FailureKind.TIMEOUT and record:
            return self._out_of_time(job, pack, attempt_id, record)
        had_no_time = job.has_begun and job.state.state in ("COMPLETED", "TIMEOUT")
        if not record and had_no_time and kind is not FailureKind.OUT_OF_MEMORY:
            kind = RequeueReason.NOT_STARTED  # the job had no time left for this pack
        elif kind is FailureKind.WORKER_LOST and not job.has_begun and is_known and job.state.state == "FAILED":
            kind = FailureKind.NOT_BEGUN
        return AttemptEnd(
            pack.attempt_id,
            how,
            kind,
            attempt_id,
            node=job.state.node,
            scheduler_facts=self._scheduler_facts(job, record),
        )

    def _interrupted(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> AttemptEnd:
        """Return the end of a pack that saved its state when its job was told to end."""
        if job.unknown_since is None and job.state.kind == FailureKind.CANCELLED:
            known = self._scheduler_facts(job, record)
            return AttemptEnd(
                pack.attempt_id,
                _describe_end(job),
                FailureKind.CANCELLED,
                attempt_id,
                node=job.state.node,
                scheduler_facts=known,
            )
        if job.state.state in ("COMPLETED", "TIMEOUT"):
            end = self._out_of_time(job, pack, attempt_id, record)
            if end.kind is FailureKind.TIMEOUT:
                return end
        return AttemptEnd(pack.attempt_id, latest_id=attempt_id)

    def _out_of_time(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> AttemptEnd:
        """Return the end of a pack that the time limit cut off: a failure only if a job's whole time got it nowhere."""
        if record.get("checkpoints") or record.get("trials_done") or not self._used_half_its_time(record):
            return AttemptEnd(pack.attempt_id, kind=RequeueReason.CUT_OFF, latest_id=attempt_id)
        limit = "" if self._profile is None else f" of {self._profile.walltime_min} min"
        where = f" on {job.state.node}" if job.state.node else ""
        how = (
            f"job {job.job_id} reached its time limit{limit} before the task had saved anything{where}{_run_time_text(job)}: "
            "it would begin anew in each job; a longer walltime_min is needed, or a task that saves checkpoints "
            "(context.checkpoint_due, save_checkpoint)"
        )
        known = self._scheduler_facts(job, record)
        return AttemptEnd(
            pack.attempt_id, how, FailureKind.TIMEOUT, attempt_id, node=job.state.node, scheduler_facts=known
        )

    def _write_earlier_ends(self, job: WatchedJob) -> None:
        """Write down the ends of attempts that were running when a job was put back into the queue, once the next has begun."""
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
            starts = earlier_starts(job.job_id)
        for restart, record in open_records:
            start = starts[restart] if restart < len(starts) else JobState("NODE_FAIL", node=record["host"] or "")
            kind = FailureKind.NODE_LOST if start.state == "NODE_FAIL" else FailureKind.PREEMPTED
            how = f"job {job.job_id} ended as {start.state} on {start.node}, and was started anew"
            if self._write_end(record, kind, how, start):
                self._closed_ids.add(record["attempt_id"])
                # under no name that was submitted: the first start has that of the whole job, which goes on
                node, ran_as = record["host"] or start.node, record["attempt_id"]
                known = {"ended_at": start.ended_at}
                self.earlier_ends.append(AttemptEnd("", how, kind, latest_id=ran_as, node=node, scheduler_facts=known))

    def _write_end(self, record: Record, kind: FailureKind, how: str, state: JobState) -> bool:
        """Write down the end of an attempt that nobody waits for; return whether the store took it."""
        # what its node does after its job has ended costs no hours, and what its job needed to come so far is lost with it
        over = {"ended_at": state.ended_at, "heartbeat_at": state.ended_at}
        over |= {"started_at": state.started_at} if self._is_first_in_slot(record, state) else {}
        try:
            write_lost(self._store, {"pack_id": "", "device": ""}, record, over, kind=kind, error=how)
        except OSError as error:
            log.info("end of attempt %s not written: %s", record["attempt_id"], error)
            return False
        return True

    def _scheduler_facts(self, job: WatchedJob, record: Record) -> dict[str, Any]:
        """Return what the scheduler knows of an attempt; one that came behind others says itself when it began."""
        known = {"host": job.state.node, "job_id": job.job_id, "pid": 0, "ended_at": job.state.ended_at}
        is_all = not record or self._is_first_in_slot(record, job.state)
        return known | ({"started_at": job.state.started_at} if is_all else {})

    def _is_first_in_slot(self, record: Record, state: JobState) -> bool:
        """Whether an attempt was one of those with which a job began, so that its slot had run nothing before."""
        if state.started_at is None or not 0 <= record["started_at"] - state.started_at < MAX_START_S:
            return False
        of_job = (r["started_at"] for r in (self._records or {}).values() if r["job_id"] == record["job_id"])
        first = min((at for at in of_job if at >= state.started_at), default=record["started_at"])
        return record["started_at"] - first < LATE_AFTER_S

    def _used_half_its_time(self, record: Record) -> bool:
        """Whether a pack had about half of a job's time or more: one that came behind others may have had seconds."""
        if self._profile is None:
            return True
        ran_s = (record.get("ended_at") or record.get("heartbeat_at") or 0.0) - (record.get("started_at") or 0.0)
        return ran_s >= (60 * self._profile.walltime_min - self._profile.warning_s - EARLY_S) / 2

    def _newest_record(self, pack: SubmittedPack, restarts: int) -> tuple[str, Record]:
        """Return (attempt, record) of a pack's last start that left one."""
        for restart in range(restarts + 1, -1, -1):  # one more than we know of: it may have just been started anew
            attempt_id = nth_attempt_id(pack.attempt_id, restart)
            seen = self._records
            record = read_attempt(self._store, self._sweep, attempt_id) if seen is None else seen.get(attempt_id)
            if record is not None:
                return attempt_id, record
        return pack.attempt_id, {}


def list_unreported_ends(
    store: Store, sweep: str, submissions: Sequence[Submission], states: Mapping[str, JobState]
) -> list[Record]:
    """Return how the packs ended whose job is over without a word of theirs, where no launch has written it down."""
    deaths = []
    ends = PackOutcomes(store, sweep, StartFailures(0))
    for submission in submissions:
        for job_id, packs in submission.jobs():
            state = states.get(job_id)
            if state is None or state.phase != "over":
                continue
            job = WatchedJob(job_id, submission, list(packs), state)
            is_settled = state.ended_at is not None and time.time() - state.ended_at >= CHECKPOINT_GRACE_S
            by_attempt = {pack.attempt_id: pack for pack in packs}
            for end in ends.pop_ended(job, 1, is_over=True, is_settled=is_settled):
                if end.exit_message is not None and isinstance(end.kind, FailureKind):
                    attempt_id = end.latest_id or end.attempt_id
                    known = {
                        **asdict(by_attempt[end.attempt_id]),
                        "attempt_id": attempt_id,
                        "sweep": sweep,
                        "device": "",
                    }
                    known |= end.scheduler_facts
                    record = read_attempt(store, sweep, attempt_id) or {}
                    deaths.append(asdict(lost_attempt(known, record, kind=end.kind, error=end.exit_message)))
    return deaths


def _possible_attempt_ids(job: WatchedJob) -> Iterator[str]:
    """Yield the attempts that may have left a record of a job's packs."""
    for pack in job.packs:
        for restart in range((job.state.restarts or 0) + 2):  # one more than we know of, see `_newest_record`
            yield nth_attempt_id(pack.attempt_id, restart)


def _never_ran(job: WatchedJob) -> bool:
    """Whether the scheduler itself says that nothing of ours has run in a job that is over."""
    never_had_a_node = job.unknown_since is None and not job.state.node and not job.state.restarts
    return job.state.failed_in_setup or (never_had_a_node and not job.has_begun)


def _failure_kind(job: WatchedJob, printed: str) -> FailureKind:
    """Return the kind of failure of a job that is over, also where the scheduler hides that memory ran out."""
    if job.unknown_since is not None:
        return FailureKind.WORKER_LOST
    if job.state.kind == FailureKind.WORKER_LOST and _MEMORY.search(printed):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind(job.state.kind)


def _is_definite(job: WatchedJob) -> bool:
    """Whether a job's processes are known to be gone, by how it ended."""
    return job.unknown_since is None and job.state.is_definite


def _describe_end(job: WatchedJob) -> str:
    """Say how a job ended, where, and by what."""
    if job.unknown_since is not None:
        return f"job {job.job_id} is gone" + (f" on {job.state.node}" if job.state.node else "")
    ended = "was cancelled" if job.state.state == "CANCELLED" else f"ended as {job.state.state}"
    how = f"job {job.job_id} {ended}" + (f" on {job.state.node}" if job.state.node else "")
    if job.state.state == "CANCELLED" or not job.state.is_definite or job.state.failed_in_setup:
        return how
    if job.state.signal:
        with suppress(ValueError):
            return f"{how} by signal {job.state.signal} ({signal.Signals(job.state.signal).name})"
    return f"{how} with exit code {job.state.exit_code}" if job.state.exit_code else how


def _run_time_text(job: WatchedJob) -> str:
    """Say how long a job ran, where that is known."""
    if job.state.started_at is None or job.state.ended_at is None:
        return ""
    return f" (it ran {(job.state.ended_at - job.state.started_at) / 60:.1f} min)"


def _memory_text(printed: str) -> str:
    """Say how much memory a job used and might use, where SLURM printed it."""
    said = re.search(r"exceeded memory limit \((\d+) > (\d+)\)", printed)
    return "" if said is None else f", {int(said[1]) / 2**30:.3g} of {int(said[2]) / 2**30:.3g} GB used"


def _stderr_tail(printed: str) -> str:
    """Return the last lines of what a job printed, without what SLURM's own programs say about its end."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    return " / ".join((own or lines)[-3:])
