"""A commit is all or nothing, also if an answer is lost or a listing lags."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.worker.__main__ import StopFlag, run_job
from depthrate.orchestrator.worker.attempt_runner import AttemptRunner, CommitError
from depthrate.storage.commits.snapshot import UNSTABLE_LISTING, await_commits, take_snapshot
from depthrate.storage.files.paths import is_compacted, table_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from tests.support.clock import Clock
from tests.support.faulty_store import make_writes_fail
from tests.support.launches import OWN_TASKS, job_options
from tests.support.tests_rows import A, B, commit


def test_committed_rows_are_read_back(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"])
    results = results_of(store)
    assert results.snapshot.trial_ids() == {"t1", "t2"} and not results.problems
    assert results.sql("select count(*) from metrics").fetchall() == [(12,)]
    rows = results.sql("select trial_id, depth, step, layer, nc1 from results order by 1").fetchall()
    assert rows == [("t1", 2, 5, 2, pytest.approx(6.2)), ("t2", 3, 5, 2, pytest.approx(6.2))]
    assert results.sql("select count(*) from curves where loss is null").fetchall() == [(2,)], "NaN is null"


def test_every_crash_point_leaves_nothing_or_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at the n-th write of a commit, for every n: readers see the trial only after the last write."""
    for crash_at in range(6):
        with monkeypatch.context() as patch:
            tried = make_writes_fail(patch, lambda path: "before" if len(tried) > crash_at else None)
            fails = crash_at < 5  # record, metrics, curves, features, trials
            with pytest.raises(OSError, match="injected") if fails else contextlib.nullcontext():
                commit(store, f"a{crash_at}", ["t1"])
        results = results_of(store)
        visible = results.sql("select count(*) from metrics").fetchall()[0][0]
        assert (results.snapshot.trial_ids(), visible) == ((set(), 0) if crash_at < 5 else ({"t1"}, 6))
        assert not results.problems, "what a dead attempt left is not damage"


def test_the_earliest_commit_wins_whole(store: Store) -> None:
    commit(store, "late", ["t1", "t2"], hour=2, value=200.0)
    commit(store, "early", ["t2", "t3"], hour=1, value=100.0)
    results = results_of(store)
    rows = results.sql(
        "select trial_id, attempt_id, min(nc1), count(*) from metrics group by all order by 1"
    ).fetchall()
    assert rows == [("t1", "late", 200.0, 6), ("t2", "early", 100.0, 6), ("t3", "early", 100.0, 6)]
    assert results.sql("select count(*), count(distinct trial_id) from results").fetchall() == [(3, 3)]


def test_equal_times_are_decided_alike_by_every_reader(store: Store) -> None:
    for attempt in ("b", "a", "c"):
        commit(store, attempt, ["t1"], hour=1)
    assert take_snapshot(store).trials["attempt_id"].to_pylist() == ["a"]


def test_parts_of_one_attempt(store: Store) -> None:
    for part in range(3):
        commit(store, "a1", [f"t{part}"], part=part)
    assert take_snapshot(store).trial_ids() == {"t0", "t1", "t2"}
    assert "trials/sweep=s/a1-0002.parquet" in store.list()


def test_features_of_one_layer(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"], value=1.0, width=3)
    commit(store, "a2", ["t3"], value=7.0, width=5, dtype=np.float16)
    results = results_of(store)
    labels, features = results.features("t2", layer=2)
    assert labels.tolist() == [0, 1] and features.tolist() == [[7, 8, 9], [10, 11, 12]]
    assert results.features("t3", layer=1)[1].dtype == np.float16
    assert results.sql("select max(len(feature)) from features").fetchall() == [(5,)]
    with pytest.raises(KeyError, match="no features of trial 't2' at layer 9"):
        results.features("t2", layer=9)


def test_row_group_per_large_layer(folder: Store) -> None:
    commit(folder, "a1", ["t1", "t2"], width=2**17)
    metadata = pq.read_metadata(folder.full_path(table_path("features", "s", "a1", None)))
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 2, 2, 2]
    column = metadata.row_group(0).column(metadata.num_columns - 1)
    assert column.path_in_schema.startswith("feature.") and "BYTE_STREAM_SPLIT" in column.encodings


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
def test_part_numbers_are_never_reused(folder: Store, monkeypatch: pytest.MonkeyPatch, stored: bool) -> None:
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


def test_parts_continue_after_a_failure(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.orchestrator.worker.attempt_runner.MAX_COMMIT_DELAY_S", 0.0)

    def loses_first_answer(path: str) -> str | None:
        trials = [path for path in tried if path.startswith("trials/")]
        return "after" if trials == [path] else None

    tried = make_writes_fail(monkeypatch, loses_first_answer)
    run_job(job(folder, [1, 2]), StopFlag())
    written = [path for path in tried if path.startswith("trials/")]
    assert len(written) == len(set(written)) == 2, "the same trial in two parts; one of them counts"
    assert results_of(folder).sql("select trial_id, count(*) from trials group by 1").fetchall() == [("t1", 1)]


def test_parts_may_repeat_a_trial(store: Store) -> None:
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


def test_commit_without_its_files_failed(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


def after_listing(monkeypatch: pytest.MonkeyPatch, folder: str, act: Callable[[], object], times: int = 1) -> None:
    """Call a function right after a folder was listed, the first times."""
    plain, remaining = Store.list, times

    def listing(self: Store, listed: str = "") -> dict[str, int]:
        nonlocal remaining
        found = plain(self, listed)
        if listed == folder and remaining:
            remaining -= 1
            act()
        return found

    monkeypatch.setattr(Store, "list", listing)


def test_replaced_files_leave_no_gap(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifests are listed before the compaction, the commits after it has deleted them."""
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    after_listing(monkeypatch, "manifest", lambda: compact(folder, grace_s=0))
    snapshot = take_snapshot(folder)
    assert snapshot.trial_ids() == {"t1", "t2"} and not snapshot.problems


def test_restless_store_is_reported(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    monkeypatch.setattr("depthrate.storage.commits.snapshot.RESCAN_DELAYS_S", (0.0, 0.0))
    numbers = iter(range(1000))
    plain = Store.list_many

    def list_many(self: Store, folders: Sequence[str]) -> dict[str, int]:
        listing = plain(self, folders)
        folder.write(f"manifest/sweep=s/20260102T000000_{next(numbers):012d}.json", b"{}")
        return listing

    monkeypatch.setattr(Store, "list_many", list_many)
    snapshot = take_snapshot(folder)
    assert UNSTABLE_LISTING in {problem.reason for problem in snapshot.problems}


def test_new_commits_are_no_reason_to_look_again(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    looks = 0
    plain = Store.list_many

    def list_many(self: Store, folders: Sequence[str]) -> dict[str, int]:
        nonlocal looks
        looks += 1
        listing = plain(self, folders)
        commit(folder, f"20260101T000001_{looks:012d}", [f"n{looks}"])
        return listing

    monkeypatch.setattr(Store, "list_many", list_many)
    assert "t1" in take_snapshot(folder).trial_ids() and looks == 2


def test_lagging_listing_is_awaited(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    clock, plain = Clock(), Store.list

    def lagging(self: Store, listed: str = "") -> dict[str, int]:
        return {path: size for path, size in plain(self, listed).items() if clock.now >= 25 or B not in path}

    monkeypatch.setattr(Store, "list", lagging)
    assert take_snapshot(folder).trial_ids() == {"t1"}
    assert await_commits(folder, {"t1", "t2"}, clock.sleep).trial_ids() == {"t1", "t2"} and 25 <= clock.now < 60
    clock.now = -1000.0
    assert await_commits(folder, {"t1", "t2"}, clock.sleep).trial_ids() == {"t1"}, "at last it says what is to be seen"
    clock.now = 100.0
    await_commits(folder, {"t1", "t2"}, clock.sleep)
    assert clock.now == 100.0, "nobody waits for what is there"
