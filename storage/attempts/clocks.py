"""When things happened by the store's clock, where the clocks of the machines that write to it disagree."""

from __future__ import annotations

import time
from typing import Any

from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState

TOLERANCE_S = 60.0
"""By how much two clocks may differ before one of them is not believed."""


def heartbeat_of(store: Store, path: str, record: dict[str, Any]) -> float | None:
    """Return when the attempt of a record at `path` last gave a sign of life.

    What its own clock says is believed while it is close to ours; else the time counts at which the store received the
    record, which is written with every heartbeat.
    """
    said = record["heartbeat_at"]
    if record["state"] is not AttemptState.RUNNING or said is None:
        return said
    if abs(time.time() - said) <= TOLERANCE_S:
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
