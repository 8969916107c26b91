"""A write that was stored although its writer saw an error is never overwritten, and loses no trial."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.orchestrator.worker.__main__ import StopFlag, run_job
from depthrate.orchestrator.worker.attempt_runner import AttemptRunner, CommitError
from depthrate.storage.files.paths import is_compacted
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from tests.support.launches import OWN_TASKS, job_options
from tests.support.tests_rows import commit

A, B = "20260101T000000_aaaaaaaaaaaa", "20260101T000000_bbbbbbbbbbbb"


def job(store: Store, depths: list[int]) -> AttemptSpec:
    return AttemptSpec(
        attempt_id=new_attempt_id(),
        sweep="s",
        task=f"{OWN_TASKS}:power_law",
        pack_id="p",
        trial_ids=[f"t{depth}" for depth in depths],
        params=[{"depth": depth, "exponent": 0.5, "noise": 0.0, "seed": 0} for depth in depths],
        options=job_options(store),
    )


@pytest.mark.parametrize("stored", [True, False])
def test_a_part_number_is_not_used_again_after_a_failed_commit(
    folder: Store, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """With a compaction in between, overwriting would hide and then delete a trial whose commit had returned."""
    writes, plain, plain_commit = Counter[str](), Store.write, AttemptRunner.commit_if_due

    def write(self: Store, path: str, content: bytes, *, durable: bool = False) -> None:
        if not path.startswith(("trials/", "metrics/")) or is_compacted(path):
            return plain(self, path, content, durable=durable)
        writes[path] += 1
        fails = path.startswith("trials/") and writes.total() == 2
        if stored or not fails:
            plain(self, path, content, durable=durable)
        if fails:
            commit(folder, A, ["other"])
            compact(folder, grace_s=0)
            raise OSError("the answer was lost")

    def commit_as_the_heartbeat_does(self: AttemptRunner) -> None:
        with contextlib.suppress(CommitError):
            plain_commit(self)

    monkeypatch.setattr("depthrate.orchestrator.worker.attempt_runner.MAX_COMMIT_DELAY_S", 0.0)
    monkeypatch.setattr(AttemptRunner, "commit_if_due", commit_as_the_heartbeat_does)
    monkeypatch.setattr(Store, "write", write)
    assert run_job(job(folder, [1, 2, 3]), StopFlag()).state == "done"
    monkeypatch.undo()
    assert max(writes.values()) == 1, writes
    for _ in range(2):
        rows = results_of(folder).sql(
            "select trial_id, count(*) from metrics where trial_id <> 'other' group by 1 order by 1"
        )
        assert rows.fetchall() == [("t1", 1), ("t2", 1), ("t3", 1)]
        compact(folder, grace_s=0)


def test_parts_go_on_after_a_failure_within_an_attempt(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    plain = Store.write
    monkeypatch.setattr("depthrate.orchestrator.worker.attempt_runner.MAX_COMMIT_DELAY_S", 0.0)

    def write(self: Store, path: str, content: bytes, *, durable: bool = False) -> None:
        plain(self, path, content, durable=durable)
        if path.startswith("trials/"):
            written.append(path)
            if len(written) == 1:
                raise OSError("the answer was lost")

    monkeypatch.setattr(Store, "write", write)
    run_job(job(folder, [1, 2]), StopFlag())
    assert len(written) == len(set(written)) == 2, "the same trial in two parts; one of them counts"
    assert results_of(folder).sql("select trial_id, count(*) from trials group by 1").fetchall() == [("t1", 1)]


def test_parts_of_one_attempt_may_hold_the_same_trial(store: Store) -> None:
    """Each part also holds a trial that another attempt committed earlier, so that no part is fully visible."""
    commit(store, B, ["t0", "t3"], hour=1)
    commit(store, A, ["t0", "t1"], hour=2, part=0)
    commit(store, A, ["t3", "t1", "t2"], hour=3, part=1)
    for _ in range(2):
        rows = results_of(store).sql("select trial_id, count(*) from metrics group by 1 order by 1").fetchall()
        assert rows == [("t0", 6), ("t1", 6), ("t2", 6), ("t3", 6)]
        compact(store, grace_s=0)


def test_a_commit_is_never_written_over(store: Store) -> None:
    commit(store, A, ["t1", "t2"], part=3)
    before = store.list_many(["trials", "metrics"])
    with pytest.raises(FileExistsError, match="commits are never overwritten"):
        commit(store, A, ["t9"], part=3)
    assert store.list_many(["trials", "metrics"]) == before


def test_a_commit_whose_files_were_taken_away_meanwhile_has_failed(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was suspended until it seemed lost, and a repair moved its files aside."""
    monkeypatch.setattr("depthrate.storage.commits.commit.SUSPENDED_S", -1.0)
    plain = Store.write

    def write(self: Store, path: str, content: bytes, *, durable: bool = False) -> None:
        if path.startswith("trials/"):
            self.move(f"metrics/sweep=s/{A}.parquet", "quarantine/x")
        plain(self, path, content, durable=durable)

    monkeypatch.setattr(Store, "write", write)
    with pytest.raises(FileNotFoundError, match="was suspended too long"):
        commit(folder, A, ["t1"])
