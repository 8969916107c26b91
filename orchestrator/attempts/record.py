"""The attempt record in the store: node, progress and end of an attempt. A hint, never the truth."""

import hashlib
import json
import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from depthrate.orchestrator.attempts.liveness import stalled_s
from depthrate.orchestrator.attempts.node_health import is_hardware_error
from depthrate.storage.attempts.records import Record, read_loose_records
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.tasks.interface import Engine

SCHEDULER_KNOWN_KINDS = (FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY, FailureKind.CANCELLED)
"""Failure kinds that only the scheduler can report. The worker only records that it was asked to stop."""


def nth_attempt_id(attempt_id: str, restart: int) -> str:
    """Return the attempt ID of a job's n-th restart by the scheduler. It is the same in every process."""
    if restart == 0:
        return attempt_id
    return f"{attempt_id[:15]}_{hashlib.sha256(f'{attempt_id} {restart}'.encode()).hexdigest()[:12]}"


def new_attempt_id() -> str:
    """Return a unique attempt ID that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}_{secrets.token_hex(6)}"


@dataclass(kw_only=True)
class Attempt:
    """One execution of a pack, with the fields of its record."""

    attempt_id: str
    sweep: str
    pack_id: str
    trial_ids: list[str]
    device: str
    state: AttemptState = AttemptState.RUNNING
    started_at: float = field(default_factory=time.time)
    heartbeat_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    host: str = field(default_factory=lambda: os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    pid: int = field(default_factory=os.getpid)
    job_id: str | None = field(default_factory=lambda: os.environ.get("DEPTHRATE_JOB_ID"))
    step: int = 0
    num_steps: int | None = None
    trials_done: int = 0
    step_s: float | None = None
    """Seconds per step of the pack, or of the trial that runs alone. None until enough steps are timed."""
    engine: Engine | None = None
    """Engine in use. None until an engine is chosen, and for tasks that do not report an engine."""
    compile_s: float | None = None
    """Seconds spent building kernels, or waiting for another process to build them."""
    checkpoints: int = 0
    """Checkpoints saved by this attempt."""
    code_hash: str | None = None
    """Version of the task's code."""
    progress_at: float | None = None
    """Time of the last progress: a step, a trial or a checkpoint."""
    beat_s: float | None = None
    """Seconds between heartbeats."""
    packs_s: float = 0.0
    """Run time of its packs in seconds, without start-up and other overhead."""
    cpu_s: float | None = None
    """CPU seconds over all cores, set at the end."""
    gpu_share: float | None = None
    """Share of the GPU per pack, if the attempt runs on a GPU."""
    needs_bytes: int | None = None
    """Bytes that the full store must have free before this attempt can commit its finished trials."""
    error_kind: FailureKind | None = None
    error: str | None = None
    traceback: str | None = None

    def beat(self, store: Store) -> None:
        """Write the record with a fresh heartbeat."""
        self.heartbeat_at = time.time()
        self.write(store)

    def write(self, store: Store) -> None:
        """Write the record."""
        store.write(attempt_path(self.sweep, self.attempt_id), json.dumps(asdict(self)).encode())


_FIELDS = Attempt.__dataclass_fields__.keys()


def read_attempt(store: Store, sweep: str, attempt_id: str) -> Record | None:
    """Return an attempt's record, or None if it cannot be read."""
    return read_attempts(store, sweep, [attempt_id]).get(attempt_id)


def read_attempts(store: Store, sweep: str, attempt_ids: Iterable[str]) -> dict[str, Record]:
    """Map attempt IDs to the readable records, which are read in one batch."""
    paths = [attempt_path(sweep, attempt_id) for attempt_id in attempt_ids]
    return {record["attempt_id"]: record for _, record in read_loose_records(store, paths)}


@dataclass(frozen=True, kw_only=True)
class SchedulerFacts:
    """Facts about an attempt that its scheduler or driver knows better than the recording process. None: unknown."""

    pack_id: str | None = None
    trial_ids: Sequence[str] | None = None
    device: str | None = None
    code_hash: str | None = None
    host: str | None = None
    job_id: str | None = None
    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None


def lost_attempt(
    attempt_id: str,
    sweep: str,
    record: Record | None,
    *,
    kind: FailureKind,
    error: str | None,
    facts: SchedulerFacts = SchedulerFacts(),
) -> Attempt:
    """Return the final state of an attempt that could not record its end itself.

    The attempt's own `record` wins, except over the scheduler's start, and the last heartbeat is its end.
    """
    fields: dict[str, Any] = {"pack_id": "", "trial_ids": [], "device": "", "ended_at": time.time()}
    times = {"started_at": facts.started_at, "heartbeat_at": facts.ended_at}
    for known in (asdict(facts), record or {}, times):
        fields |= {name: value for name, value in known.items() if value is not None and name in _FIELDS}
    fields |= {"attempt_id": attempt_id, "sweep": sweep, "state": AttemptState.LOST, "error_kind": kind, "error": error}
    return Attempt(**fields)


def write_lost(store: Store, lost: Attempt) -> None:
    """Write the end of an attempt as `lost_attempt` returns it, unless the record has an end already.

    The end INTERRUPTED is replaced if the scheduler knows the cause.

    Raises:
        OSError: The store is not writable.
    """
    current = read_attempt(store, lost.sweep, lost.attempt_id)
    state = AttemptState.RUNNING if current is None else current["state"]
    if state is AttemptState.RUNNING or _is_overruled_by_scheduler(state, lost.error_kind):
        lost.write(store)


def classify_failure(
    kind: FailureKind, exit_message: str | None, record: Record | None, store: Store
) -> tuple[FailureKind, str | None]:
    """Return the failure kind and error of an attempt that is over and not done.

    `kind` and `exit_message` come from the executor, `record` from the store.
    """
    state = AttemptState.RUNNING if record is None else record["state"]
    if exit_message is not None and (state is AttemptState.RUNNING or _is_overruled_by_scheduler(state, kind)):
        return _kind_of_error(kind, exit_message), exit_message
    if record is None or state is AttemptState.RUNNING:
        problem = "the attempt left no record" if record is None else "the attempt could not write its end"
        try:
            store.check_writable()
        except StoreError as store_error:
            return FailureKind.STORE, f"{problem}: {store_error}"
        return FailureKind.STORE, f"{problem}: its node could not write to the store, or has another store at this path"
    recorded_kind = kind if kind is FailureKind.FAILED_TO_START_ANYWHERE else record["error_kind"] or kind
    error = record["error"] or exit_message
    return _kind_of_error(recorded_kind, error), error


def _is_overruled_by_scheduler(state: AttemptState, kind: FailureKind | None) -> bool:
    """Return whether the scheduler's cause is more precise than the worker's record that it was interrupted."""
    return state is AttemptState.INTERRUPTED and kind in SCHEDULER_KNOWN_KINDS


def _kind_of_error(kind: FailureKind, error: str | None) -> FailureKind:
    is_hardware = kind in (FailureKind.TASK, FailureKind.WORKER_LOST) and is_hardware_error(error)
    return FailureKind.HARDWARE if is_hardware else kind


def describe_attempt(record: Record) -> str:
    """Return a string with the attempt's ID, node, process, job and start."""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["started_at"]))
    job = f", job {record['job_id']}" if record.get("job_id") else ""
    return f"attempt {record['attempt_id']} on {record['host']}, pid {record['pid']}{job}, since {since}"


def stalled_text(record: Record) -> str:
    """Return a sentence about an attempt that makes no progress, with the command that ends it."""
    sweep = shlex.quote(record["sweep"])
    return (
        f"{describe_attempt(record)}: no progress for {stalled_s(record) / 60:.0f} min, at step {record['step']}/"
        f"{record['num_steps'] or '?'}. End it: depthrate cancel {sweep} --force, or launch with --stall-minutes"
    )
