"""Times by the store's clock, for stores whose writers have clocks that disagree.

Every launch, and every operation that deletes, moves, purges or tags, calls `require_clock` first. A cancellation is never
refused. Ages determine whether a file is young, live or past its retention. Of several commits of the same trial, the one with
the earliest timestamp is visible.
"""

import logging
import time
from typing import TypeGuard

from depthrate.storage.files.store import Store, StoreError

log = logging.getLogger("depthrate")
MAX_SKEW_S = 60.0
"""Maximum difference in seconds at which two clocks are both trusted."""


def is_time(value: object) -> TypeGuard[float]:
    """Return whether a value is a time in seconds since the epoch that calendars support: up to the year 9999."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 253_402_214_400


class ClockError(StoreError):
    """The local clock and the store's differ too much to delete, move or launch anything."""


def require_clock(store: Store) -> None:
    """Compare the local clock with the store's by writing a file there. A small difference is subtracted from ages.

    Raises:
        ClockError: They differ by more than a minute.
        StoreError: The store cannot be written.
    """
    store.check_writable()
    if not store.clock_ahead_s:
        return
    message = _skew_message(store)
    if abs(store.clock_ahead_s) > MAX_SKEW_S:
        raise ClockError(
            f"{message} (limit {MAX_SKEW_S:.0f} s). Nothing was changed, since ages decide which files are deleted and moved, "
            "and commit times decide which commit of a trial is visible. Sync the clock (NTP, check with timedatectl), or "
            "use another machine."
        )
    log.warning("%s. Ages are computed with the store's clock.", message)


def compare_clocks(store: Store) -> None:
    """Compare the local clock with the store's, for operations that only compute ages, and log a difference.

    Raises:
        StoreError: The store cannot be written.
    """
    store.check_writable()
    if abs(store.clock_ahead_s) > MAX_SKEW_S:
        log.warning("%s. Ages are computed with the store's clock.", _skew_message(store))


def _skew_message(store: Store) -> str:
    side = "ahead of" if store.clock_ahead_s > 0 else "behind"
    return f"the local clock is {abs(store.clock_ahead_s):.0f} s {side} the clock of store {store.url}"


def age_s(store: Store, path: str, written_at: float) -> float:
    """Return a file's age in seconds: the smaller of its ages by its writer's clock and by the store's."""
    received = store.modified(path)
    return time.time() - max(written_at, written_at if received is None else received + store.clock_ahead_s)
