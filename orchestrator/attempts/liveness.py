"""Whether an attempt runs and comes further, by its heartbeats: how often they are due, and how many may be missed.

All that judges silence asks `stale_after_s`: peer launches, `status`, the driver, a node's reporter, an executor's scheduler.
"""

from __future__ import annotations

from depthrate.storage.attempts.claims import is_process_gone
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState

HEARTBEAT_S = 2.0
REMOTE_HEARTBEAT_S = 15.0
"""On an object store every heartbeat is a paid request."""
MAX_HEARTBEATS_PER_S = 20.0
"""Of all attempts of a sweep together, unless each would then give one in more than `MAX_HEARTBEAT_S`."""
MAX_HEARTBEAT_S = 60.0
MAX_MISSED_HEARTBEATS = 4
"""An attempt that has missed more of them is stale."""
STALE_S = 60.0
"""Seconds of silence below which no attempt is taken for dead by its record alone."""


def heartbeat_s(store: Store, num_attempts: int = 1) -> float:
    """Return the seconds between two heartbeats of each of the attempts that may run at once in this store."""
    min_s = HEARTBEAT_S if store.is_local else REMOTE_HEARTBEAT_S
    return max(min_s, min(MAX_HEARTBEAT_S, num_attempts / MAX_HEARTBEATS_PER_S))


def stale_after_s(interval_s: float, *, min_s: float = 0.0) -> float:
    """Return the seconds of silence after which an attempt with a heartbeat every `interval_s` is stale."""
    return max(min_s, MAX_MISSED_HEARTBEATS * interval_s)


def is_live(record: Record, now: float) -> bool:
    """Whether an attempt seems to run: its heartbeat is fresh, and its process exists if it is one of this machine."""
    silent_s = now - (record["heartbeat_at"] or 0.0)
    if record["state"] != AttemptState.RUNNING or silent_s > stale_after_s(record.get("beat_s") or 0.0, min_s=STALE_S):
        return False
    return not is_process_gone(record["host"], record["pid"])


def stalled_s(record: Record) -> float:
    """Return the seconds without progress of a running attempt, by its own clock; 0 where the record has no times."""
    progress_at, heartbeat_at = record.get("progress_at"), record.get("heartbeat_at")
    return 0.0 if progress_at is None or heartbeat_at is None else max(0.0, heartbeat_at - progress_at)
