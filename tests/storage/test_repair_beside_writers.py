"""A repair during a running sweep never moves committed files, nor files about to be committed."""

import json
import os
import time
from pathlib import Path

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.attempts.clocks import MAX_SKEW_S
from depthrate.storage.commits.commit import SUSPENDED_S
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.parquet import write_table
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import YOUNG_S, verify
from tests.support.storage_chaos import CHECK, Chaos, faults_in, journalled
from tests.support.tests_rows import commit, tables_of

A, B = "20260101T000000_aaaaaaaaaaaa", "20260101T000000_bbbbbbbbbbbb"


@pytest.fixture
def no_file_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.maintenance.verify.YOUNG_S", -10.0)


@pytest.mark.slow
def test_verify_and_repair_beside_running_writers(
    folder: Store, tmp_path: Path, no_file_is_young: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short packs, one after another, without a grace period for young files, so that only the order of the scans
    protects them."""
    chaos = Chaos(folder.url, tmp_path, seed=0, pause_s=0.05, io_errors=0.0)
    moved, repairs, started = [], 0, time.monotonic()
    try:
        for number in range(2):
            chaos.start(f"writer-{number}")
        while time.monotonic() - started < 8 or repairs < 5 or len(journalled(tmp_path)) < 60:
            verification = verify(folder)
            moved += repair(folder, verification).moved if verification.findings else []
            repairs += 1
    finally:
        for name in list(chaos.running):
            chaos.kill(name)
    committed = journalled(tmp_path)
    assert moved == [] and len(committed) >= 60 and repairs >= 5
    rows = results_of(folder).sql(CHECK).fetchall()
    assert not list(faults_in(rows, committed))


def test_commit_between_listings_stays(folder: Store, no_file_is_young: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits are listed, then an attempt commits and ends, then its data are listed."""
    commit(folder, A, ["t1"])
    plain, remaining = Store.list, [1]

    def listing(self: Store, listed: str = "") -> dict[str, int]:
        if listed == "metrics" and remaining and remaining.pop():
            commit(folder, B, ["t2"])
        return plain(self, listed)

    monkeypatch.setattr(Store, "list", listing)
    verification = verify(folder)
    assert not verification.findings and not remaining


def test_later_commits_stay(folder: Store, no_file_is_young: None) -> None:
    commit(folder, A, ["t1"])
    record = {"attempt_id": B, "sweep": "s", "trial_ids": ["t2"], "state": "lost", "started_at": 1}
    folder.write(f"attempts/sweep=s/{B}.json", json.dumps(record).encode())
    orphan = f"metrics/sweep=s/{B}.parquet"
    write_table(folder, orphan, "metrics", tables_of("t2", B)["metrics"])
    verification = verify(folder)
    assert [finding.path for finding in verification.findings] == [orphan]
    folder.delete(orphan)
    commit(folder, B, ["t2"])
    assert repair(folder, verification).moved == [] and take_snapshot(folder).trial_ids() == {"t1", "t2"}


def test_what_a_compaction_replaced_meanwhile_is_not_missing(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    plain, remaining = Store.read, [1]

    def read(self: Store, path: str, max_bytes: int | None = None) -> bytes:
        if path.startswith("metrics/") and remaining and remaining.pop():
            compact(folder, grace_s=0)
        return plain(self, path, max_bytes)

    monkeypatch.setattr(Store, "read", read)
    verification = verify(folder)
    assert not verification.findings and not verification.lost and not remaining
    monkeypatch.undo()
    assert not verify(folder).findings


def test_recent_commits_stay(store: Store) -> None:
    """So a commit need not check its files again within `SUSPENDED_S`, which costs one request per file in a bucket."""
    assert SUSPENDED_S + MAX_SKEW_S < YOUNG_S
    record = {"attempt_id": B, "sweep": "s", "trial_ids": ["t2"], "state": "lost", "started_at": 1, "ended_at": 2}
    store.write(f"attempts/sweep=s/{B}.json", json.dumps(record).encode())
    orphan = f"metrics/sweep=s/{B}.parquet"
    write_table(store, orphan, "metrics", tables_of("t2", B)["metrics"])
    result = repair(store, verify(store))
    assert not result.moved and orphan in store.list("metrics")


def test_young_files_are_left_alone(folder: Store) -> None:
    record = {"attempt_id": B, "sweep": "s", "trial_ids": ["t2"], "state": "lost", "started_at": 1}
    folder.write(f"attempts/sweep=s/{B}.json", json.dumps(record).encode())
    orphan = f"metrics/sweep=s/{B}.parquet"
    write_table(folder, orphan, "metrics", tables_of("t2", B)["metrics"])
    assert not verify(folder).findings, "its process may only have stood still"
    os.utime(Path(folder.root, orphan), (time.time() - 3600,) * 2)
    assert [finding.path for finding in verify(folder).findings] == [orphan]
