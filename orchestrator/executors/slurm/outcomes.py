"""How a pack ended on a SLURM cluster: what its record says, and else what the scheduler says of its job.

What a job did stands in the store; what the scheduler says only matters for packs whose attempt has not written its own
end, and a pack counts as lost only when its heartbeat has stopped too. That nothing is seen is no evidence for a while: on a
shared file system what a node wrote may be seen half a minute late.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from depthrate.orchestrator.attempts.record import beat_of, lost_attempt, nth_attempt_id, read_attempt
from depthrate.orchestrator.executors.base import JobEnd, NoFailure
from depthrate.orchestrator.executors.slurm.queue import WatchedJob
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack
from depthrate.slurm.profile import GRACE_S, Profile
from depthrate.slurm.states import JobState
from depthrate.storage.attempts.records import Record, RecordReader
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")


BAD_NODE_AT = 3
"""Packs that a node must fail, with no pack done on it, before it is left out."""
DEAD_ON_ARRIVAL_AT = 2
"""Jobs that must end on a node before our program begins, one after the other, before it is left out."""
NOWHERE_AT = 3
"""Jobs that must end so, on two nodes or all there are, before the fault is taken to be no node's."""


class NodeCounts:
    """How often jobs and packs of a launch went well on each node, and how often not."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        """Of the partition; one of them is always left."""
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._begun: set[str] = set()
        """Nodes on which our program has begun: a heartbeat there is a proof that jobs can run."""
        self._not_begun: defaultdict[str, set[str]] = defaultdict(set)
        """Node -> jobs that ended on it before that, since it last happened there."""
        self.excluded: list[str] = []
        """Nodes that failed too often, which jobs avoid from then on."""

    def begins(self, node: str, job_id: str) -> None:
        """Note that our program runs in a job, though it may have been thought dead: what it writes comes late."""
        self._begun.add(node)
        if self._not_begun.pop(node, None) and node in self.excluded and self._failed[node] < BAD_NODE_AT:
            log.warning("node %s works: job %s begins there", node, job_id)
            self.excluded.remove(node)

    def ends_before_it_begins(self, node: str, job_id: str) -> None:
        """Note that a job ended on a node without a sign of our program, and leave the node out if that is the rule."""
        if node:
            self._not_begun[node].add(job_id)
            if len(self._not_begun[node]) >= DEAD_ON_ARRIVAL_AT:
                self._exclude(node, f"ended {len(self._not_begun[node])} jobs before they began")

    def count(self, node: str, done: bool) -> None:
        """Note how a pack does on a node, and leave the node out if all it does is fail."""
        if not node:
            return
        (self._done if done else self._failed)[node] += 1
        others_work = any(
            other != node and (self._done[other] or not self._failed[other]) for other in {*self._done, *self._begun}
        )
        if self._failed[node] >= BAD_NODE_AT and not self._done[node] and others_work:
            self._exclude(node, f"failed {self._failed[node]} packs and did none")

    def _exclude(self, node: str, why: str) -> None:
        if node not in self.excluded and len(self.excluded) + 1 < self._num_nodes:
            self.excluded.append(node)
            log.warning("node %s %s: jobs avoid it from now on", node, why)

    def begins_nowhere(self, running_on: Collection[str]) -> bool:
        """Whether no job can begin anywhere, given the nodes on which jobs run now: they may be about to begin."""
        if self._begun or self._done:
            return False
        tried = {node for node, jobs in self._not_begun.items() if jobs}
        num_jobs = sum(len(jobs) for jobs in self._not_begun.values())
        return num_jobs >= NOWHERE_AT and len(tried) >= min(2, self._num_nodes) and tried.issuperset(running_on)


SILENT_BEATS = 4
"""Heartbeats that a worker may miss before its silence counts."""
CANCELLED_S = 12.0
"""After a job was cancelled, how long others have to follow before it is submitted again."""
EARLY_S = 60.0
"""By how much SLURM may send the warning of a time limit too early."""
_MEMORY = re.compile(r"oom[-_ ]?kill|exceeded .*memory limit|out of memory", re.IGNORECASE)


class PackEnds:
    """Tells which packs of a job have ended, and how; what it sees of the nodes goes into `nodes`."""

    def __init__(self, store: Store, sweep: str, nodes: NodeCounts, profile: Profile | None = None):
        self._store, self._sweep = store, sweep
        self._profile = profile
        """What the jobs asked for, where that is known."""
        self.nodes = nodes
        self._cache = SnapshotCache()
        self._reader = RecordReader(store, sweep, beats=False)
        self._seen: dict[str, Record] | None = None
        """Attempt -> record at the last look; None before it: then each is asked for."""
        self._committed: set[str] | None = None

    def look_again(self, jobs: Iterable[WatchedJob] = ()) -> None:
        """Forget what was seen at the last look; what these jobs have written is then read at once, where it is new."""
        self._committed = None
        wanted = {attempt_path(self._sweep, name) for job in jobs for name in _attempts_of(job)}
        if wanted:
            with suppress(OSError):
                found = self._reader.look(wanted.__contains__).values()
                self._seen = {record["attempt_id"]: record for record in found}

    def take_ended(self, job: WatchedJob, slots: int, *, is_over: bool, is_settled: bool) -> list[JobEnd]:
        """Take the packs that ended out of a job, of which `slots` run at once, and return how.

        Until a job that is over `is_settled`, what it wrote may not be seen yet.
        """
        if job.state.phase == "waiting" and not is_over:
            if job.state.restarts == 0:
                return []
            job.current.clear()
        ends: list[JobEnd] = []
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
            self.nodes.ends_before_it_begins(job.state.node, job.job_id)
        return ends

    def _end_of(self, job: WatchedJob, pack: SubmittedPack, is_over: bool, is_settled: bool) -> JobEnd | None:
        restarts = job.state.restarts or 0
        attempt_id, record = self._newest_record(pack, restarts)
        state = record.get("state")
        if state is not None and record.get("error_kind") not in (FailureKind.NOT_BEGUN, FailureKind.BEGINS_NOWHERE):
            if not job.has_begun:
                self.nodes.begins(job.state.node, job.job_id)
            job.has_begun = True
        if state in (AttemptState.DONE, AttemptState.FAILED, AttemptState.LOST):
            if state is not AttemptState.FAILED or record.get("error_kind") == FailureKind.NOT_HERE:
                # any other exception in the task is no node's doing
                self.nodes.count(job.state.node, state is AttemptState.DONE)
            return JobEnd(pack.attempt_id, ran_as=attempt_id, record=record)
        is_last_start = attempt_id == nth_attempt_id(pack.attempt_id, restarts)
        if state is AttemptState.INTERRUPTED and is_over and (is_settled or is_last_start):
            return self._interrupted(job, pack, attempt_id, record)
        if state is not None:
            job.current[pack.attempt_id] = attempt_id
        if not is_over or not (is_settled or _wrote_nothing(job)):
            return None
        if state is AttemptState.RUNNING and self._seen is not None:
            record = read_attempt(self._store, self._sweep, attempt_id) or record  # with what its node said since
        silent_s = time.time() - (record.get("heartbeat_at") or 0.0)
        if state is AttemptState.RUNNING and silent_s < SILENT_BEATS * beat_of(record, self._store):
            return None  # the scheduler says it is over, its heartbeat says it is not
        if self._is_committed(pack):
            return JobEnd(pack.attempt_id, kind=NoFailure.NOT_STARTED)
        return self._lost(job, pack, attempt_id, record)

    def _is_committed(self, pack: SubmittedPack) -> bool:
        if self._committed is None:
            try:
                self._committed = take_snapshot(self._store, cache=self._cache).trial_ids()
            except (OSError, StoreError):
                return False
        return self._committed.issuperset(pack.trial_ids)

    def _lost(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> JobEnd:
        """Return the end of a pack whose job is over without a word of its own."""
        is_known = job.unknown_since is None
        how = f"job {job.job_id} ended as {job.state.state}" if is_known else f"job {job.job_id} is gone"
        how += f" on {job.state.node}" if job.state.node else ""
        printed = job.submission.printed_by(job.job_id)
        how += f": {_last_words(printed)}" if printed.strip() else ""
        kind: FailureKind | NoFailure = _kind(job, printed)
        if kind is FailureKind.TIMEOUT and record:
            return self._out_of_time(job, pack, attempt_id, record)
        had_no_time = job.has_begun and job.state.state in ("COMPLETED", "TIMEOUT")
        if not record and had_no_time and kind is not FailureKind.OUT_OF_MEMORY:
            kind = NoFailure.NOT_STARTED  # the job had no time left for this pack
        elif kind is FailureKind.WORKER_LOST and not job.has_begun and is_known and job.state.state == "FAILED":
            kind = FailureKind.NOT_BEGUN
        elif kind in (FailureKind.WORKER_LOST, FailureKind.NODE_LOST) or not job.has_begun:
            self.nodes.count(job.state.node, False)
        return JobEnd(pack.attempt_id, how, kind, attempt_id)

    def _interrupted(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> JobEnd:
        """Return the end of a pack that saved its state when its job was told to end."""
        if job.unknown_since is None and job.state.kind == FailureKind.CANCELLED:
            return JobEnd(pack.attempt_id, f"job {job.job_id} was cancelled", FailureKind.CANCELLED, attempt_id)
        if job.state.state in ("COMPLETED", "TIMEOUT"):
            end = self._out_of_time(job, pack, attempt_id, record)
            if end.kind is FailureKind.TIMEOUT:
                return end
        return JobEnd(pack.attempt_id, ran_as=attempt_id)

    def _out_of_time(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> JobEnd:
        """Return the end of a pack that the time limit cut off: a failure only if a job's whole time got it nowhere."""
        if record.get("checkpoints") or record.get("trials_done") or not self._had_its_time(record):
            return JobEnd(pack.attempt_id, kind=NoFailure.CUT_OFF, ran_as=attempt_id)
        limit = "" if self._profile is None else f" of {self._profile.walltime_min} min"
        how = (
            f"job {job.job_id} reached its time limit{limit} before the task had saved anything: it would begin anew in each "
            "job; a longer walltime_min is needed, or a task that saves checkpoints (context.checkpoint_due, save_checkpoint)"
        )
        return JobEnd(pack.attempt_id, how, FailureKind.TIMEOUT, attempt_id)

    def _had_its_time(self, record: Record) -> bool:
        """Whether a pack had about half of a job's time or more: one that came behind others may have had seconds."""
        if self._profile is None:
            return True
        ran_s = (record.get("ended_at") or record.get("heartbeat_at") or 0.0) - (record.get("started_at") or 0.0)
        return ran_s >= (60 * self._profile.walltime_min - self._profile.warning_s - EARLY_S) / 2

    def _newest_record(self, pack: SubmittedPack, restarts: int) -> tuple[str, Record]:
        """Return (attempt, record) of a pack's last start that left one."""
        for restart in range(restarts + 1, -1, -1):  # one more than we know of: it may have just been started anew
            attempt_id = nth_attempt_id(pack.attempt_id, restart)
            seen = self._seen
            record = read_attempt(self._store, self._sweep, attempt_id) if seen is None else seen.get(attempt_id)
            if record is not None:
                return attempt_id, record
        return pack.attempt_id, {}


def silent_deaths(
    store: Store, sweep: str, submissions: Sequence[Submission], states: Mapping[str, JobState]
) -> list[Record]:
    """Return how the packs ended whose job is over without a word of theirs, where no launch has written it down."""
    deaths = []
    ends = PackEnds(store, sweep, NodeCounts(0))
    for submission in submissions:
        for job_id, packs in submission.jobs():
            state = states.get(job_id)
            if state is None or state.phase != "over":
                continue
            job = WatchedJob(job_id, submission, list(packs), state)
            is_settled = state.ended_at is not None and time.time() - state.ended_at >= GRACE_S
            by_attempt = {pack.attempt_id: pack for pack in packs}
            for end in ends.take_ended(job, 1, is_over=True, is_settled=is_settled):
                if end.death is not None and isinstance(end.kind, FailureKind):
                    attempt_id = end.ran_as or end.attempt_id
                    known = {
                        **asdict(by_attempt[end.attempt_id]),
                        "attempt_id": attempt_id,
                        "sweep": sweep,
                        "device": "",
                    }
                    known |= {"job_id": job_id, "host": state.node, "pid": 0}
                    record = read_attempt(store, sweep, attempt_id) or {}
                    deaths.append(asdict(lost_attempt(known, record, kind=end.kind, error=end.death)))
    return deaths


class CancelledEnds:
    """Keeps cancelled packs back until it is clear whether somebody cancelled one job or everything that was left."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._held: list[JobEnd] = []
        self._since = 0.0

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, ends: list[JobEnd], *, jobs_left: bool) -> list[JobEnd]:
        """Return the ends that can be told now; `jobs_left` says whether any job goes on."""
        others = [end for end in ends if end.kind is not FailureKind.CANCELLED]
        cancelled = [end for end in ends if end.kind is FailureKind.CANCELLED]
        if cancelled:
            self._held += cancelled
            self._since = self._clock()
        if self._held and not jobs_left:
            everything = len(self._held) > 1 and not others
            kind = NoFailure.CANCELLED_ALL if everything else FailureKind.CANCELLED
            others += [replace(end, kind=kind) for end in self._held]
            self._held = []
        elif self._clock() - self._since >= CANCELLED_S:
            others += self._held
            self._held = []
        return others


def _attempts_of(job: WatchedJob) -> Iterator[str]:
    """Yield the attempts that may have left a record of a job's packs."""
    for pack in job.packs:
        for restart in range((job.state.restarts or 0) + 2):  # one more than we know of, see `_newest_record`
            yield nth_attempt_id(pack.attempt_id, restart)


def _wrote_nothing(job: WatchedJob) -> bool:
    """Whether the scheduler itself says that nothing of ours has run in a job that is over."""
    never_had_a_node = job.unknown_since is None and not job.state.node and not job.state.restarts
    return job.state.failed_in_setup or (never_had_a_node and not job.has_begun)


def _kind(job: WatchedJob, printed: str) -> FailureKind:
    """Return the kind of failure of a job that is over, also where the scheduler hides that memory ran out."""
    if job.unknown_since is not None:
        return FailureKind.WORKER_LOST
    if job.state.kind == FailureKind.WORKER_LOST and _MEMORY.search(printed):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind(job.state.kind)


def _last_words(printed: str) -> str:
    """Return the last lines of what a job printed, without what SLURM's own programs say about its end."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    return " / ".join((own or lines)[-3:])
