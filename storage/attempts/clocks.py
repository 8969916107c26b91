"""When things happened by the store's clock, where the clocks of the machines that write to it disagree.

One rule for whatever deletes, moves, purges or tags, and for launches: `require_clock` first; a cancellation is never refused.
What is young, live or over its grace is told by ages, and of several commits of one trial the one counts that says it is the
earliest.
"""

from __future__ import annotations

import logging
import time
from typing import Any, TypeGuard

from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState

log = logging.getLogger("depthrate")
MAX_SKEW_S = 60.0
"""By how much two clocks may differ before one of them is not believed."""


def is_time(value: object) -> TypeGuard[float]:
    """Whether a value is a time in seconds since the epoch, which calendars know: up to the year 9999."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 253_402_214_400


class ClockError(StoreError):
    """The clock of this machine and that of a store differ too much for anything to be deleted, moved or launched."""


def require_clock(store: Store) -> None:
    """Compare the clock of this machine with the store's, by a file written there; a small difference is taken off ages.

    Raises:
        ClockError: they differ by more than a minute.
        StoreError: the store cannot be written.
    """
    store.check_writable()
    if not store.clock_ahead_s:
        return
    how = _how_ahead(store)
    if abs(store.clock_ahead_s) > MAX_SKEW_S:
        raise ClockError(
            f"{how}; at most {MAX_SKEW_S:.0f} s are allowed, since ages decide what is deleted and moved, and the earliest "
            "commit of a trial counts; nothing was done: set the clock right (NTP; timedatectl shows it), or call this on "
            "another machine"
        )
    log.warning("%s; ages are told by the store's", how)


def compare_clocks(store: Store) -> None:
    """Compare the clock of this machine with the store's for what only tells ages, and says so where they differ.

    Raises:
        StoreError: the store cannot be written.
    """
    store.check_writable()
    if abs(store.clock_ahead_s) > MAX_SKEW_S:
        log.warning("%s; ages are told by the store's", _how_ahead(store))


def _how_ahead(store: Store) -> str:
    side = "ahead of" if store.clock_ahead_s > 0 else "behind"
    return f"the clock of this machine is {abs(store.clock_ahead_s):.0f} s {side} that of store {store.url}"


def last_heartbeat_at(store: Store, path: str, record: dict[str, Any]) -> float | None:
    """Return when the attempt of a record at `path` last gave a sign of life.

    What its own clock says is believed while it is close to ours; else the time counts at which the store received the
    record, which is written with every heartbeat.
    """
    said = record["heartbeat_at"]
    if record["state"] is not AttemptState.RUNNING or said is None:
        return said
    if abs(time.time() - said) <= MAX_SKEW_S:
        return said
    received = store.modified(path)
    if received is None:
        return min(said, record["started_at"])
    return received + store.clock_ahead_s


def age_s(store: Store, path: str, written_at: float) -> float:
    """Return for how long a file has been there, by its writer's clock and by the store's: the shorter of the two."""
    received = store.modified(path)
    ages = [time.time() - written_at]
    if received is not None:
        ages.append(time.time() - store.clock_ahead_s - received)
    return min(ages)
