"""The record of an attempt in the store: who runs what, how far it is, and how it ended. A hint, never the truth."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from depthrate.orchestrator.attempts.node_health import is_hardware_error
from depthrate.storage.attempts.records import Record, read_loose_records
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.tasks.interface import Engine

SCHEDULER_KNOWN_KINDS = (FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY, FailureKind.CANCELLED)
"""Ends of which a scheduler knows the cause, and a worker that is asked to stop does not."""


def nth_attempt_id(attempt_id: str, restart: int) -> str:
    """Return the attempt that a job makes when a scheduler has started it `restart` times anew: the same for everybody."""
    if restart == 0:
        return attempt_id
    return f"{attempt_id[:15]}_{hashlib.sha256(f'{attempt_id} {restart}'.encode()).hexdigest()[:12]}"


def new_attempt_id() -> str:
    """Return a name that no other attempt has and that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}_{secrets.token_hex(6)}"


@dataclass(kw_only=True)
class Attempt:
    """One execution of a pack, as its record has it."""

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
    engine: Engine | None = None
    """How it runs the steps of a task that trains; null before it knows, and for tasks that do not say."""
    compile_s: float | None = None
    """Of which seconds went into compiling its step, or waiting for who compiles it."""
    checkpoints: int = 0
    """Saved by this attempt."""
    code_hash: str | None = None
    """The version of the task's code that it runs."""
    progress_at: float | None = None
    """When it last came further: a step, a trial, a checkpoint."""
    beat_s: float | None = None
    """Seconds between two of its signs of life."""
    packs_s: float = 0.0
    """Seconds that its packs ran, without what an attempt costs beside them."""
    cpu_s: float | None = None
    """Seconds of all cores that it computed for, at its end."""
    gpu_share: float | None = None
    """Part of a GPU that is its own, where it computes on one."""
    needs_bytes: int | None = None
    """For which the store has no room, while it holds what has finished."""
    error_kind: FailureKind | None = None
    error: str | None = None
    traceback: str | None = None

    def beat(self, store: Store) -> None:
        """Put the state into the store with a fresh heartbeat."""
        self.heartbeat_at = time.time()
        self.write(store)

    def write(self, store: Store) -> None:
        """Put the state into the store."""
        store.write(attempt_path(self.sweep, self.attempt_id), json.dumps(asdict(self)).encode())


_FIELDS = Attempt.__dataclass_fields__.keys()


def read_attempt(store: Store, sweep: str, attempt_id: str) -> Record | None:
    """Return an attempt's record, or None if it cannot be read."""
    return read_attempts(store, sweep, [attempt_id]).get(attempt_id)


def read_attempts(store: Store, sweep: str, attempt_ids: Iterable[str]) -> dict[str, Record]:
    """Return attempt -> record of those that can be read, asked for all at once."""
    paths = [attempt_path(sweep, attempt_id) for attempt_id in attempt_ids]
    return {record["attempt_id"]: record for _, record in read_loose_records(store, paths)}


def lost_attempt(*known: Mapping[str, Any], kind: FailureKind, error: str | None) -> Attempt:
    """Return the end of an attempt that could not write it itself.

    `known` says of it at least attempt_id, sweep, pack_id, trial_ids and device; of two values the later counts.
    """
    fields = {name: value for each in known for name, value in each.items() if value is not None and name in _FIELDS}
    fields = {"ended_at": time.time()} | fields
    fields |= {"state": AttemptState.LOST, "error_kind": kind, "error": error}
    return Attempt(**fields)


def write_lost(store: Store, *known: Mapping[str, Any], kind: FailureKind, error: str | None) -> None:
    """Write the end of an attempt, see `lost_attempt`; one that it wrote itself, or somebody else, stays as it is.

    Only that it was asked to stop is no end where the scheduler says why.

    Raises:
        OSError: the store refuses it.
    """
    lost = lost_attempt(*known, kind=kind, error=error)
    now = read_attempt(store, lost.sweep, lost.attempt_id)
    if now is None or now["state"] is AttemptState.RUNNING or _is_overruled_by_scheduler(now["state"], kind):
        lost.write(store)


def classify_failure(
    kind: FailureKind, death: str | None, record: Record | None, store: Store
) -> tuple[FailureKind, str | None]:
    """Return what an attempt that is over and not done failed of, in words too.

    `kind` and `death` are what who started it saw, `record` what stands in the store.
    """
    state = AttemptState.RUNNING if record is None else record["state"]
    if death is not None and (state is AttemptState.RUNNING or _is_overruled_by_scheduler(state, kind)):
        return _kind_of_error(kind, death), death
    if record is None or state is AttemptState.RUNNING:
        return FailureKind.STORE, _missing_end_reason(store, record)
    wrote = kind if kind is FailureKind.FAILED_TO_START_ANYWHERE else record["error_kind"] or kind
    error = record["error"] or death
    return _kind_of_error(wrote, error), error


def _is_overruled_by_scheduler(state: AttemptState, kind: FailureKind) -> bool:
    """Whether what a dying worker wrote, that it was asked to stop, says less than what the scheduler knows of its end."""
    return state is AttemptState.INTERRUPTED and kind in SCHEDULER_KNOWN_KINDS


def _kind_of_error(kind: FailureKind, error: str | None) -> FailureKind:
    is_hardware = kind in (FailureKind.TASK, FailureKind.WORKER_LOST) and is_hardware_error(error)
    return FailureKind.HARDWARE if is_hardware else kind


def _missing_end_reason(store: Store, record: Record | None) -> str:
    """Say why a worker that goes on working has left no end of an attempt, or no word at all, in the store."""
    what = "the attempt left no record" if record is None else "the attempt could not write down its end"
    try:
        store.check_writable()
    except StoreError as error:
        return f"{what}: {error}"
    return f"{what}: the store could not be written there, or what is there is another one"


def describe_attempt(record: Record) -> str:
    """Say which attempt a record is of, where it runs and since when."""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["started_at"]))
    return f"attempt {record['attempt_id']} on {record['host']}, pid {record['pid']}, since {since}"
