"""A trial is visible once and completely, or not visible."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import table_path
from depthrate.storage.files.store import Store
from tests.support.tests_rows import commit


def test_committed_rows_are_read_back(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"])
    results = results_of(store)
    assert results.snapshot.trial_ids() == {"t1", "t2"} and not results.problems
    assert results.sql("select count(*) from metrics").fetchall() == [(12,)]
    assert results.sql("select trial_id, depth, step, layer, nc1 from results order by 1").fetchall() == [
        ("t1", 2, 5, 2, pytest.approx(6.2)),
        ("t2", 3, 5, 2, pytest.approx(6.2)),
    ]
    assert results.sql("select count(*) from curves where loss is null").fetchall() == [(2,)], "NaN is null"


def test_every_crash_point_leaves_nothing_or_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at the n-th write of a commit, for every n: readers see the trial only after the last write."""
    write = Store.write
    for crash_at in range(6):
        count = 0

        def failing(self: Store, path: str, content: bytes, *, durable: bool = False) -> None:
            nonlocal count
            count += 1
            if count > crash_at:
                raise OSError("killed here")
            write(self, path, content, durable=durable)

        attempt = f"a{crash_at}"
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", failing)
            if crash_at < 5:  # record, metrics, curves, features, trials
                with pytest.raises(OSError, match="killed here"):
                    commit(store, attempt, ["t1"])
            else:
                commit(store, attempt, ["t1"])
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


def test_large_features_lie_one_layer_to_a_row_group(folder: Store) -> None:
    commit(folder, "a1", ["t1", "t2"], width=2**17)
    metadata = pq.read_metadata(folder.full_path(table_path("features", "s", "a1", None)))
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 2, 2, 2]
    column = metadata.row_group(0).column(metadata.num_columns - 1)
    assert column.path_in_schema.startswith("feature.") and "BYTE_STREAM_SPLIT" in column.encodings
