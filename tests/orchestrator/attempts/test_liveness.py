"""The one rule for heartbeats."""

from typing import Any

import pytest

from depthrate.orchestrator.attempts.liveness import heartbeat_s, is_live, stale_after_s
from depthrate.storage.files.store import Store


def test_interval_by_store_and_machine(folder: Store) -> None:
    assert (heartbeat_s(folder), heartbeat_s(folder, is_local=False)) == (2.0, 5.0)
    assert heartbeat_s(Store("memory://x"), is_local=False) == 15.0


@pytest.mark.parametrize(
    ("beat_s", "silent_s", "lives"), [(None, 59, True), (None, 61, False), (50.0, 199, True), (50.0, 201, False)]
)
def test_recorded_interval_decides_liveness(beat_s: float | None, silent_s: float, lives: bool) -> None:
    record: dict[str, Any] = {"state": "running", "host": "elsewhere", "pid": 1, "beat_s": beat_s}
    assert is_live(record | {"heartbeat_at": 1e9 - silent_s}, now=1e9) is lives
    assert not is_live(record | {"heartbeat_at": 1e9, "state": "done"}, now=1e9)


def test_four_missed_heartbeats_and_longer_stalls() -> None:
    assert stale_after_s(2.0) == 8.0 and stale_after_s(2.0, min_s=60.0) == 60.0
