"""Clocks that are hours off: nothing counts as live for ever, and the launch of today is not hidden by one of tomorrow."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pytest
from tests_rows import commit

from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact

A, B = "20260101T000000_aaaaaaaaaaaa", "20260101T000000_bbbbbbbbbbbb"
HOUR = 3600.0


def heartbeat(store: Store, said: float, received: float) -> float:
    """Return what readers take for the heartbeat of an attempt that says one time, whose record the store got at another."""
    record = {"attempt_id": A, "sweep": "s", "trial_ids": ["t"], "state": "running", "started_at": said - 5}
    path = f"attempts/sweep=s/{A}.json"
    store.write(path, json.dumps(record | {"heartbeat_at": said}).encode())
    os.utime(Path(store.root, path), (received, received))
    (read,) = read_records(store, take_snapshot(store))
    return float(read["heartbeat_at"])


@pytest.mark.parametrize("ahead_s", [10 * HOUR, -10 * HOUR])
def test_a_heartbeat_counts_from_when_the_store_received_it(folder: Store, ahead_s: float) -> None:
    now = time.time()
    assert abs(heartbeat(folder, now + ahead_s, now) - now) < 2, "it lives"
    assert heartbeat(folder, now + ahead_s, now - HOUR) < now - HOUR + 2, "it died an hour ago, whatever its clock says"
    assert heartbeat(folder, now - 5, now - 9) == now - 5, "clocks that agree are believed"


def test_the_newest_spec_is_the_one_launched_last_whatever_the_clocks_said(folder: Store) -> None:
    write_spec(folder, "s", "aaaa", {"name": "s", "seeds": 1}, ["t1"])
    tomorrow = json.loads(folder.read("sweeps/s/aaaa.json")) | {"launched_at": "2999-01-01T00:00:00+00:00"}
    folder.write("sweeps/s/aaaa.json", json.dumps(tomorrow).encode())
    write_spec(folder, "s", "bbbb", {"name": "s", "seeds": 2}, ["t1", "t2"])
    assert newest_specs(folder)["s"].spec_hash == "bbbb"
    write_spec(folder, "s", "aaaa", {"name": "s", "seeds": 1}, ["t1"])
    assert newest_specs(folder)["s"].spec_hash == "aaaa"


def test_specs_of_older_versions_go_by_their_time(folder: Store) -> None:
    for name, when in (("aaaa", "2026-01-02"), ("bbbb", "2026-01-01")):
        folder.write(f"sweeps/s/{name}.json", json.dumps({"spec": {"name": "s"}, "launched_at": when}).encode())
    assert newest_specs(folder)["s"].spec_hash == "aaaa"
    write_spec(folder, "s", "bbbb", {"name": "s"})
    assert newest_specs(folder)["s"].spec_hash == "bbbb"


def test_a_clock_that_disagrees_with_the_stores_is_named(
    folder: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        folder.check_writable()
        assert not caplog.records and folder.clock_ahead_s == 0.0
        now = time.time()
        monkeypatch.setattr(Store, "modified", lambda self, path: now - 10 * HOUR)
        folder.check_writable()
    assert "36000 s ahead of that of store" in caplog.text.replace("36001", "36000") and folder.clock_ahead_s > 9 * HOUR


def test_a_compaction_by_a_clock_that_is_late_keeps_its_grace(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.maintenance.merge.time.time", lambda: real() - 10 * HOUR)
        compact(folder)
    assert compact(folder).deleted == 0 and compact(folder, grace_s=0).deleted > 0
