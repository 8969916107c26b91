"""Compaction changes nothing for readers, whatever runs at the same time and wherever it is killed."""

import io
import time
from typing import Any

import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.attempts.records import compacted_log, read_records
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import is_compacted
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.merge import Group, plan_groups, write_group
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import VIEWS
from tests.support.tests_rows import commit


def fill(store: Store, packs: int = 6) -> None:
    """Commit packs of three trials. The first trial of each pack but the first is also in the previous pack, committed
    earlier."""
    for number in range(packs):
        trials = [f"t{number}a", f"t{number}b", f"t{number + 1}a"]
        commit(
            store,
            f"20260101T00000{number}_aaaaaaaaaaaa",
            trials,
            hour=number,
            value=float(number),
            width=3 + number % 2,
        )


def answers(store: Store) -> dict[str, Any]:
    """Return everything that a reader can see."""
    results = results_of(store)
    assert not results.problems
    seen: dict[str, Any] = {
        view: sorted(map(repr, results.sql(f"select * from {view}").fetchall())) for view in VIEWS if view != "attempts"
    }
    seen["attempts"] = sorted(results.sql("select attempt_id, state, trial_ids from attempts").fetchall())
    for trial_id in ("t0a", "t3a", "t3b"):
        labels, features = results.features(trial_id, layer=2)
        seen[trial_id] = (labels.tolist(), features.tolist())
    return seen


@pytest.mark.slow
def test_readers_see_the_same_before_and_after(store: Store) -> None:
    fill(store)
    before = answers(store)
    result = compact(store)
    assert (result.groups, result.commits, result.trials, result.records) == (1, 6, 13, 6)
    assert result.deleted == 0 and result.waiting == 6 * 5
    assert answers(store) == before, "the replaced files are still there"
    assert compact(store, grace_s=0).deleted == 30
    assert answers(store) == before
    remaining = [p for p in store.list() if p.startswith(("trials", "metrics", "curves", "features", "attempts"))]
    assert all(is_compacted(path) for path in remaining) and len(remaining) == 6, "two of features"
    again = compact(store, grace_s=0)
    assert (again.groups, again.deleted) == (0, 0), "nothing left to do"
    commit(store, "20260101T000009_aaaaaaaaaaaa", ["t9x"])
    assert len(results_of(store).sql("select * from trials").fetchall()) == 14


def test_rows_are_sorted_so_that_statistics_prune(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.files.parquet.ROWS_PER_GROUP", 10)
    fill(folder, packs=9)
    compact(folder, grace_s=0)
    (path,) = [path for path in folder.list("metrics")]
    metadata = pq.ParquetFile(io.BytesIO(folder.read(path))).metadata
    names = [metadata.row_group(0).column(i).path_in_schema for i in range(metadata.num_columns)]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    last = [group.column(names.index("is_last")).statistics for group in groups]
    assert [s.min for s in last] == sorted((s.min for s in last), reverse=True), "the last layers stand before the rest"
    assert sum(s.max for s in last) <= len(groups) / 3 + 1
    ranges = [group.column(names.index("trial_id")).statistics for group in groups]
    assert sum(s.min <= "t3b" <= s.max for s in ranges) <= 4


def test_compactions_of_little_are_merged_later(folder: Store) -> None:
    for number in range(4):
        commit(folder, f"20260101T00000{2 * number}_aaaaaaaaaaaa", [f"t{number}a"])
        commit(folder, f"20260101T00000{2 * number + 1}_bbbbbbbbbbbb", [f"t{number}b"])
        assert compact(folder, grace_s=0).groups == 1
        assert len(folder.list("manifest")) == 1 and len(folder.list("metrics")) == 1
    assert results_of(folder).sql("select count(*) from metrics").fetchall() == [(48,)]


def test_observer_keeps_no_replaced_files(folder: Store) -> None:
    cache = SnapshotCache()
    for turn in range(3):
        for number in range(2):
            commit(folder, f"20260101T000000_{2 * turn + number:012x}", [f"t{turn}{number}"])
        assert len(take_snapshot(folder, cache=cache).trial_ids()) == 2 * turn + 2
        compact(folder, grace_s=3600 if turn < 2 else 0)  # within the retention the files still exist
        assert len(take_snapshot(folder, cache=cache).trial_ids()) == 2 * turn + 2
        assert sum(path.startswith("trials/") for path, _ in cache.entries) == len(take_snapshot(folder).manifests)
    compact(folder, grace_s=0)
    take_snapshot(folder, cache=cache)
    assert {path for path, _ in cache.entries if path.startswith("manifest/")} == set(folder.list("manifest"))


@pytest.mark.parametrize("number", [0, 4, 5])
def test_slices_keep_their_rows(folder: Store, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("depthrate.storage.commits.cache.COMMITS_PER_TABLE", 2)
    trials = [[f"t{index}", f"u{index}"][: 1 + index % 2] for index in range(number)]
    for index, trial_ids in enumerate(trials):
        commit(folder, f"20260101T000000_{index:012x}", trial_ids)
    assert [sorted(source.trial_ids()) for source in take_snapshot(folder).sources] == trials


def test_groups_keep_to_their_size(folder: Store) -> None:
    fill(folder)
    result = compact(folder, group_bytes=40_000)
    assert result.groups == len(take_snapshot(folder).manifests) >= 2


@pytest.mark.slow
def test_large_features_stay_in_their_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.maintenance.merge.MERGE_FEATURES_BELOW", 1)
    commit(store, "20260101T000000_aaaaaaaaaaaa", ["t0a", "t3a"], hour=1)
    commit(store, "20260101T000001_aaaaaaaaaaaa", ["t3a", "t3b"], hour=2)
    before = answers(store)
    compact(store, grace_s=0)
    assert "features/sweep=s/20260101T000000_aaaaaaaaaaaa.parquet" in store.list("features"), "whole: kept as it is"
    assert "features/sweep=s/20260101T000001_aaaaaaaaaaaa.parquet" not in store.list("features"), "held a double"
    assert answers(store) == before
    commit(store, "20260101T000002_aaaaaaaaaaaa", ["t4a"], hour=3)
    commit(store, "20260101T000003_aaaaaaaaaaaa", ["t5a"], hour=3)
    before = answers(store)
    for _ in range(2):
        compact(store, grace_s=0)
        assert answers(store) == before


@pytest.mark.slow
def test_two_compactions_at_once(store: Store) -> None:
    """Both read the same commits, and one of them a later one as well."""
    fill(store)
    first = take_snapshot(store)
    commit(store, "20260101T000009_aaaaaaaaaaaa", ["t9a", "t9b"], hour=9)
    second, before = take_snapshot(store), answers(store)
    for number, snapshot in enumerate((second, first)):
        for group in plan_groups(store, snapshot, 2, 1e9):
            write_group(store, group, snapshot, f"20260102T00000{number}_cccccccccccc")
        assert answers(store) == before
    assert len(take_snapshot(store).manifests) == 2
    compact(store, grace_s=0)
    assert answers(store) == before and len(take_snapshot(store).manifests) == 1


def test_compaction_holds_every_trial(folder: Store) -> None:
    """Otherwise two compactions that each leave a duplicate to the other lose it, as happened once in the long chaos
    run."""
    fill(folder)
    snapshot = take_snapshot(folder)
    for number in range(2):
        for group in plan_groups(folder, snapshot, 2, 1e9):
            write_group(folder, group, snapshot, f"20260102T00000{number}_cccccccccccc")
    commit(folder, "20260101T000009_aaaaaaaaaaaa", ["t0a", "t9x"], hour=9)
    snapshot = take_snapshot(folder)
    everything = [*snapshot.sources, *snapshot.superseded_commits]
    assert len(everything) == 3 and len(snapshot.superseded_commits) == 1
    for number, sources in enumerate((everything[:1], everything[1:], everything[::2], everything)):
        stored = {trial for source in sources for trial in source.all_trials["trial_id"].to_pylist()}
        written = write_group(folder, Group("s", sources, []), snapshot, f"20260103T00000{number}_cccccccccccc")
        parts = [pq.read_table(io.BytesIO(folder.read(file.path)))["trial_id"] for file in written.files["trials"]]
        assert {trial_id for part in parts for trial_id in part.to_pylist()} == stored


def test_earlier_clock_wins_after_compaction(store: Store) -> None:
    """Compacting one of two commits must not change which of them is visible."""
    fill(store, packs=4)
    compact(store, grace_s=0)
    commit(store, "20251231T000000_aaaaaaaaaaaa", ["t2b"], value=99.0)
    rows = results_of(store).sql("select min(nc1), count(*) from metrics where trial_id = 't2b'").fetchall()
    plain = Store(f"memory://{id(store)}-{time.time_ns()}")
    fill(plain, packs=4)
    commit(plain, "20251231T000000_aaaaaaaaaaaa", ["t2b"], value=99.0)
    assert rows == results_of(plain).sql("select min(nc1), count(*) from metrics where trial_id = 't2b'").fetchall()
    compact(store, grace_s=0)
    assert rows == results_of(store).sql("select min(nc1), count(*) from metrics where trial_id = 't2b'").fetchall()


class Stop(BaseException):
    """Simulated kill of the process."""


@pytest.mark.parametrize("point", range(14))
@pytest.mark.slow
def test_killed_anywhere_compaction_continues(folder: Store, point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder)
    before = answers(folder)
    remaining_calls = point
    with monkeypatch.context() as patch:
        for name in ("write", "delete", "delete_many"):
            plain = getattr(Store, name)

            def counted(self: Store, *args: Any, _plain: Any = plain, **options: Any) -> None:
                nonlocal remaining_calls
                remaining_calls -= 1
                if remaining_calls < 0:
                    if args and isinstance(args[0], list):
                        _plain(self, args[0][: len(args[0]) // 2])
                    raise Stop
                _plain(self, *args, **options)

            patch.setattr(Store, name, counted)
        try:
            compact(folder, grace_s=0, group_bytes=60_000)
        except Stop:
            pass
        else:
            assert point > 6
    assert answers(folder) == before
    monkeypatch.setattr("depthrate.storage.maintenance.replaced_files.ABANDONED_S", -1.0)
    compact(folder, grace_s=0)
    compact(folder, grace_s=0)
    assert answers(folder) == before
    named = {file.path for manifest in take_snapshot(folder).manifests for file in manifest.all_files()}
    tables = ("trials", "metrics", "curves", "features")
    assert {path for path in folder.list() if path.startswith(tables)} == {p for p in named if p.startswith(tables)}


def test_corrupt_compaction_replaces_nothing(folder: Store) -> None:
    fill(folder)
    before = answers(folder)
    compact(folder)
    (path,) = [path for path in folder.list("curves") if is_compacted(path)]
    content = bytearray(folder.read(path))
    content[len(content) // 3] ^= 1
    folder.write(path, bytes(content))
    result = compact(folder, grace_s=0)
    assert result.deleted == 0 and result.waiting == 30
    folder.delete(path)
    now = results_of(folder)
    assert now.problems and sorted(map(repr, now.sql("select * from curves").fetchall())) == before["curves"]


def test_damaged_files_are_left_alone_with_their_commit(folder: Store) -> None:
    fill(folder)
    path = "metrics/sweep=s/20260101T000002_aaaaaaaaaaaa.parquet"
    content = bytearray(folder.read(path))
    content[40] ^= 1
    folder.write(path, bytes(content))
    result = compact(folder, grace_s=0)
    assert result.damaged == (path,) and result.commits == 5
    assert path in folder.list() and results_of(folder).sql("select count(*) from trials").fetchall() == [(13,)]


def test_records_and_logs_of_attempts_go_along(store: Store) -> None:
    fill(store)
    store.write("attempts/sweep=s/20260101T000003_aaaaaaaaaaaa.log", b"it printed this\n")
    for state, ended in (("running", "null"), ("failed", str(time.time()))):
        attempt = f"20260101T000008_{state:x<12}"
        record = f'"sweep": "s", "trial_ids": ["t9"], "state": "{state}", "started_at": 2, "ended_at": {ended}'
        store.write(f"attempts/sweep=s/{attempt}.json", f'{{"attempt_id": "{attempt}", {record}}}'.encode())
    before = sorted(record["attempt_id"] for record in read_records(store, take_snapshot(store)))
    compact(store, grace_s=0)
    snapshot = take_snapshot(store)
    assert sorted(record["attempt_id"] for record in read_records(store, snapshot)) == before and len(before) == 8
    assert len(snapshot.attempts) == 2, "one runs, and one ended just now"
    assert compacted_log(store, snapshot, "20260101T000003_aaaaaaaaaaaa") == b"it printed this\n"
    fill(store, packs=2)  # rewritten by a late worker: newer than the compacted rows
    assert len(read_records(store, take_snapshot(store))) == 8


def test_nothing_to_compact(store: Store) -> None:
    assert compact(store).groups == 0
    commit(store, "20260101T000000_aaaaaaaaaaaa", ["t0a"])
    assert compact(store).groups == 0 and not store.list("manifest")


@pytest.mark.parametrize("damage", ["schema", "cut", "empty", "flip"])
def test_damaged_records_of_a_compaction_stop_no_other(folder: Store, damage: str) -> None:
    fill(folder)
    compact(folder, grace_s=0)
    (path,) = [path for path in folder.list("attempts") if is_compacted(path)]
    content = folder.read(path)
    at = content.index(b"ARROW:schema") + 24
    changes = {"schema": content[:at] + b"\xef" + content[at + 1 :], "cut": content[:-9], "empty": b""}
    changes["flip"] = content[:30] + bytes([content[30] ^ 1]) + content[31:]
    folder.write(path, changes[damage])
    commit(folder, f"20260102T000000_{'e' * 12}", ["u1"])
    commit(folder, f"20260102T000000_{'f' * 12}", ["u2"])
    result = compact(folder, grace_s=0)
    assert path in result.damaged or damage in ("cut", "empty"), "which the snapshot leaves out by its size"
    assert compacted_log(folder, take_snapshot(folder), f"20260102T000000_{'e' * 12}") is None
    assert path in {finding.path for finding in verify(folder).findings}
