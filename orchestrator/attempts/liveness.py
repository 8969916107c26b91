"""Heartbeat rules: the interval between heartbeats, and the age at which an attempt is stale or stalled.

Peer launches, `status`, the driver, the node reporters and the executors all use `stale_after_s`.
"""

from depthrate.storage.attempts.claims import is_process_gone
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState

HEARTBEAT_S = 2.0
"""Seconds between heartbeats on a file system, of workers on the machine of their launch."""
CLUSTER_HEARTBEAT_S = 5.0
"""Seconds between heartbeats on a file system, of workers on other machines."""
REMOTE_HEARTBEAT_S = 15.0
"""Seconds between heartbeats on an object store, where each is a paid request."""
MAX_MISSED_HEARTBEATS = 4
"""Number of heartbeats that an attempt may miss without being stale."""
MAX_MISSED_NODE_HEARTBEATS = 2
"""Missed combined heartbeats of a node after which a worker writes its own heartbeat. Less than `MAX_MISSED_HEARTBEATS`."""
STALE_S = 60.0
"""Shortest heartbeat age in seconds at which a record alone makes an attempt stale."""

POLL_BACKOFF_FACTOR = 20
"""Poll backoff: after a poll of d seconds wait 20 d, so that polling takes at most 5 % of the time."""
STALLED_AFTER_S = 900.0
"""Seconds without progress after which an attempt is listed as stalled."""


def heartbeat_s(store: Store, *, is_local: bool = True) -> float:
    """Return the seconds between heartbeats in this store, of workers on this machine or on others."""
    if store.uses_requests:
        return REMOTE_HEARTBEAT_S
    return HEARTBEAT_S if is_local else CLUSTER_HEARTBEAT_S


def stale_after_s(interval_s: float, *, min_s: float = 0.0, max_missed: int = MAX_MISSED_HEARTBEATS) -> float:
    """Return the heartbeat age in seconds at which an attempt or a node with this heartbeat interval is stale."""
    return max(min_s, max_missed * interval_s)


def is_live(record: Record, now: float) -> bool:
    """Return whether the attempt is live: its heartbeat is fresh and, on this host, its process exists."""
    age_s = now - (record["heartbeat_at"] or 0.0)
    if record["state"] != AttemptState.RUNNING or age_s > stale_after_s(record.get("beat_s") or 0.0, min_s=STALE_S):
        return False
    return not is_process_gone(record["host"], record["pid"])


def stalled_s(record: Record) -> float:
    """Return the seconds without progress of a running attempt, by its own clock, or 0 without recorded times."""
    progress_at, heartbeat_at = record.get("progress_at"), record.get("heartbeat_at")
    return 0.0 if progress_at is None or heartbeat_at is None else max(0.0, heartbeat_at - progress_at)
