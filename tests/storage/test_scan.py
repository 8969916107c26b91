"""Queries open only the files that can match. Features of one layer are read without the others."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store
from depthrate.storage.query.scan import TableDataset
from depthrate.storage.tables.parameters import _parsed_by_arrow, _parsed_by_python
from tests.support.s3_server import S3Server
from tests.support.tests_rows import commit


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of files that each scan opened."""
    counts: list[int] = []
    matching = TableDataset._matching

    def counted(self: TableDataset, filter: Any) -> Any:
        files = matching(self, filter)
        counts.append(len(files))
        return files

    monkeypatch.setattr(TableDataset, "_matching", counted)
    return counts


def test_one_trials_rows_open_its_file_alone(store: Store, opened: list[int]) -> None:
    for number in range(20):
        commit(store, f"a{number:02d}", [f"t{number:02d}{letter}" for letter in "abcd"], value=number)
    results = results_of(store)
    rows = results.sql("select min(nc1), count(*) from metrics where trial_id = 't07c'").fetchall()
    assert rows == [(7.0, 6)] and opened == [1]
    opened.clear()
    assert results.sql("select count(*) from metrics where trial_id = 'none'").fetchall() == [(0,)] and opened == [0]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("trial_id in ('t01a', 't18d', 'none')", 2),
        ("trial_id = 't01a' or nc1 > 23.5", 1 + 4),
        ("trial_id <> 't01a'", 79),
        ("not (trial_id = 't01a')", 79),
        ("trial_id like 't1%'", 40),
        ("trial_id >= 't19'", 4),
        ("trial_id between 't03' and 't04z'", 8),
        ("upper(trial_id) = 'T05B'", 1),
        ("trial_id = 't0' || '5b'", 1),
        ("trial_id is null", 0),
        ("trial_id = (select max(trial_id) from trials)", 1),
        ("trial_id in (select trial_id from trials where trial_id like '%b')", 20),
        ("(trial_id = 't01a') is not true", 79),
        ("coalesce(trial_id, 'x') = 't01a' and is_last", 1),
        ("case when trial_id = 't01a' then layer = 0 else layer = 2 end", 80),
    ],
)
@pytest.mark.slow
def test_leaving_files_out_never_changes_an_answer(folder: Store, where: str, expected: int) -> None:
    for number in range(20):
        commit(folder, f"a{number:02d}", [f"t{number:02d}{letter}" for letter in "abcd"], value=number)
    query = f"select count(distinct trial_id) from metrics where {where}"
    assert results_of(folder).sql(query).fetchall() == [(expected,)]


def test_features_of_a_layer_one_trial_after_another(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"], value=1.0)
    commit(store, "a2", ["t2", "t3"], value=5.0, hour=1)
    found = {trial: (labels.tolist(), features) for trial, labels, features in results_of(store).iter_features(layer=2)}
    assert sorted(found) == ["t1", "t2", "t3"] and found["t2"][0] == [0, 1]
    np.testing.assert_array_equal(found["t2"][1], np.arange(6, 12).reshape(2, 3) + 1.0)
    np.testing.assert_array_equal(found["t3"][1], np.arange(6, 12).reshape(2, 3) + 5.0)


def test_one_layer_of_a_large_file_is_a_small_part_of_the_bytes(s3: S3Server) -> None:
    store = Store(s3.new_url())
    commit(store, "a1", [f"t{number}" for number in range(8)], width=2**19)
    results = results_of(store)
    size = store.size("features/sweep=s/a1.parquet")
    read = 0
    opened = store.fs.open(store.full_path("features/sweep=s/a1.parquet")).__class__
    fetch = opened._fetch_range

    def counted(self: Any, start: int, end: int) -> bytes:
        nonlocal read
        read += end - start
        return fetch(self, start, end)

    opened._fetch_range = counted
    try:
        labels, features = results.features("t5", layer=2)
    finally:
        opened._fetch_range = fetch
    assert labels.tolist() == [0, 1] and features.shape == (2, 2**19)
    assert size is not None and read < size / 2, f"{read} of {size} bytes"


def test_a_lazy_relation_is_read_in_batches(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"])
    relation = results_of(store).sql("select * from metrics order by trial_id, step, layer", lazy=True)
    batches = list(relation.filter("layer = 1").to_arrow_reader(2))
    assert sum(batch.num_rows for batch in batches) == 4


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["2026-01-01", "2026-01-01 10:00:00", "1", "null", "1e5", datetime.date.today().isoformat()]),
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.floats(0, 1), max_size=3),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "depth"]), _VALUES), min_size=1, max_size=6))
@example([{"a": 2**63}])
@example([{"a": 2**53 + 1}, {"a": 0.5}])
@example([{"a": [2**64]}])
@pytest.mark.slow
def test_parameters_read_by_arrow_are_those_read_by_python(rows: list[dict[str, Any]]) -> None:
    texts = [json.dumps(row) for row in rows] * (1000 // len(rows) + 1)
    fast, plain = _parsed_by_arrow(texts), _parsed_by_python(texts)
    if fast is not None:
        assert fast.keys() == plain.keys()
        for name, column in fast.items():
            assert column.type == plain[name].type or plain[name].null_count == len(plain[name]), name
            assert column.to_pylist() == plain[name].to_pylist()


def test_usual_parameters_are_read_by_arrow() -> None:
    rows = [
        {"depth": n, "lr": 0.1 * n, "arch": "rn1", "batch_size": None, "measure_steps": [], "b": True}
        for n in range(1000)
    ]
    columns = _parsed_by_arrow([json.dumps(row) for row in rows])
    assert columns is not None
    assert columns["depth"].type == pa.int64() and columns["lr"].to_pylist() == [0.1 * n for n in range(1000)]
    assert columns["batch_size"].null_count == 1000 and columns["measure_steps"].to_pylist()[0] == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured as Linux says it")
def test_a_scan_of_many_files_does_not_hold_their_footers(folder: Store) -> None:
    for number in range(120):
        commit(folder, f"20260101T000000_{number:012x}", [f"t{number}"])
    results = results_of(folder)
    results.sql("select nc1 from metrics where trial_id = 't1'").fetchall()  # imports and start-up
    before = _resident_bytes()
    assert results.sql("select count(trial_id) from metrics").fetchall() != [(0,)]
    assert (_resident_bytes() - before) / 120 < 150_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
