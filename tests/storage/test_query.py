"""SQL over committed rows: views, files read, exports, features, and the end of a process."""

import gc
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import open_results, results_of
from depthrate.storage.files.parquet import feature_bytes, open_parquet
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.query.features import read_layer
from depthrate.storage.query.results import Results
from depthrate.storage.query.row_writers import write_csv, write_json, write_parquet
from depthrate.storage.query.scan import TableDataset
from depthrate.storage.query.sql_checks import QueryError
from depthrate.storage.tables.feature_file import FeatureFile
from depthrate.storage.tables.from_task import layer_parts, task_table
from depthrate.storage.tables.schema import TableError
from tests.support.s3_server import S3Server
from tests.support.tests_rows import A, B, C, commit, commit_rows


@pytest.fixture
def store(folder: Store) -> Store:
    """A folder: what reads of the other kinds return is tested in test_store.py, test_commit.py and test_s3.py."""
    return folder


def test_parameters_become_typed_columns(store: Store) -> None:
    commit(store, "a1", ["t1"], params={"depth": 2, "lr": 1.0, "arch": "rn1", "steps": 7, "bias": None, "list": [1, 2]})
    commit(store, "a2", ["t2"], params={"depth": 3, "lr": 2.0, "other": True})
    frame = results_of(store).sql("select * from trials order by trial_id").df()
    assert frame["depth"].tolist() == [2, 3] and frame["lr"].tolist() == [1.0, 2.0]
    assert frame["param_steps"][0] == 7, "a parameter named like a standard column keeps a name of its own"
    assert frame["other"].tolist()[1] is True and list(frame["list"][0]) == [1, 2]


def test_curve_hides_no_parameter(store: Store) -> None:
    commit(store, "a1", ["t1"])
    assert results_of(store).sql("select lr from results").fetchall() == [(0.1,)]


def types_of(results: Results) -> dict[str, str]:
    relation = results.sql("select * from results limit 0")
    return {name: str(kind) for name, kind in zip(relation.columns, relation.types, strict=True)}


@pytest.mark.parametrize(
    "others",
    [
        {"depth": 2, "loss": "ce", "lr": 0.1},
        {"depth": 2, "loss": "ce", "objective": "mine", "accuracy": True},
        {"depth": 2, "nc1": "text"},
    ],
    ids=str,
)
def test_column_types_are_stable(folder: Store, others: dict[str, Any]) -> None:
    """Before, `loss` was a number until the first trial with a parameter of that name, and text from then on."""
    commit(folder, A, ["t1"], params={"depth": 2, "samples": 8})
    before = types_of(results_of(folder))
    commit(folder, B, ["t2"], params=others, sweep="other")
    after = types_of(results_of(folder))
    assert before["last_loss"] == "DOUBLE" and "loss" not in before
    assert {name: kind for name, kind in after.items() if name in before} == before
    assert results_of(folder).sql("select last_loss from results where trial_id = 't1'").fetchall() == [(2.0,)]


def test_last_loss_of_every_sweep(folder: Store) -> None:
    commit(folder, A, ["t1"], params={"depth": 2})
    commit(folder, B, ["t2"], params={"depth": 2, "loss": "ce"}, sweep="other")
    results = results_of(folder)
    for scoped in (results, results.for_sweep("s"), results.for_sweep("other")):
        assert {value for (value,) in scoped.sql("select last_loss from results").fetchall()} == {2.0}
    for scoped, query in (
        (results, "select avg(loss) from results"),
        (results, "select trial_id from results where loss < 0.5"),
        (results.for_sweep("s"), "select avg(loss) from results"),
        (results.for_sweep("s"), "select loss from results"),
    ):
        with pytest.raises(QueryError, match="The last value of curve loss is column last_loss here"):
            scoped.sql(query)
    with pytest.raises(QueryError) as error:
        results.sql("select avg(nothing) from results")
    assert "last_loss" not in str(error.value).split("Candidate")[0].split("Did you mean")[0]


def test_measured_loss_is_the_last_loss(folder: Store) -> None:
    trials = {"t1": {"metrics": [{"layer": 2, "loss": 0.25, "nc1": 1.0}]}}
    commit_rows(folder, A, trials, fields=lambda trial_id: {"params": '{"loss": "ce"}'})
    assert results_of(folder).sql("select loss, last_loss from results").fetchall() == [("ce", 0.25)]


@pytest.mark.parametrize(
    "query",
    [
        "select last_loss from results",
        "select * from results",
        "select columns('lo.*') from results",
        "select r from results r",
        "from results",
        "FROM results\nwhere depth = 2",
        "describe results",
        "summarize results",
        "select results from results",
        "describe select * from results",
        "select LAST_LR from results",
    ],
)
def test_curves_join_every_query(store: Store, query: str) -> None:
    commit(store, "a1", ["t1"])
    answer = str(results_of(store).sql(query).columns) + str(results_of(store).sql(query).fetchall())
    assert "loss" in answer.lower() or "last_lr" in answer.lower() or "'loss'" in answer, answer


@pytest.mark.parametrize(
    "query",
    [
        "create table x as select 1",
        "copy (select * from trials) to '/tmp/depthrate-test.csv'",
        "attach '/tmp/depthrate-test.db'",
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "set enable_external_access = true",
        "drop view results",
        "select 1; select 2",
        "install httpfs",
        "pragma database_list",
        "",
    ],
)
def test_nothing_but_reading(folder: Store, query: str) -> None:
    commit(folder, "a1", ["t1"])
    with pytest.raises(QueryError):
        results_of(folder).sql(query)
    assert not Path("/tmp/depthrate-test.csv").exists() and not Path("/tmp/depthrate-test.db").exists()


def test_python_variables_are_out_of_reach(store: Store) -> None:
    import pandas as pd

    secret = pd.DataFrame({"x": [1]})
    with pytest.raises(QueryError, match="secret"):
        results_of(store).sql("select * from secret")
    assert len(secret) == 1


def test_an_error_names_the_views(store: Store) -> None:
    with pytest.raises(QueryError, match=r"nc9.*|views: trials, metrics"):
        results_of(store).sql("select nc9 from results")


def test_unknown_column_suggests_a_name(store: Store) -> None:
    commit(store, "a1", ["t1"], params={"depth": 2})
    with pytest.raises(QueryError, match='Did you mean "depth"'):
        results_of(store).sql("select dept from results")


def test_parameters_join_layers(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"], params={"depth": 2})
    message = r"depth is a column of trials and results. Add `join trials using \(trial_id\)`. Binder"
    with pytest.raises(QueryError, match=message):
        results_of(store).sql("select depth, avg(nc1) from metrics group by depth")
    page = (Path(__file__).parents[2] / "docs/how-to/analyse.md").read_text()
    documented, _ = re.findall(r"```sql\n(select.*?)```", page, re.DOTALL)
    rows = results_of(store).sql(documented).fetchall()
    assert rows and all(row[:2] == (2, "train") for row in rows)


def test_relations_outlive_the_store_and_each_other(store: Store) -> None:
    commit(store, "a1", ["t1"])
    results = results_of(store)
    unread = results.sql("select * from curves").arrow()
    second = results.sql("select * from trials")
    del results
    gc.collect()
    assert len(second.df()) == 1 and unread.read_all().num_rows == 2


def test_an_empty_store_answers_with_no_rows(store: Store) -> None:
    results = results_of(store)
    for view in ("trials", "metrics", "curves", "features", "attempts", "fits", "results"):
        assert results.sql(f"select count(*) from {view}").fetchall() == [(0,)]


def test_refresh_sees_later_commits(store: Store) -> None:
    results = results_of(store)
    commit(store, "a1", ["t1"])
    assert results.sql("select count(*) from trials").fetchall() == [(0,)]
    assert results.refresh().sql("select count(*) from trials").fetchall() == [(1,)]


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store at .*nowhere.*--store"):
        open_results(str(tmp_path / "nowhere"))


def commit_loop(store: Store, attempt: str, metrics: list[dict[str, object]], status: str = "ok") -> None:
    """Commit the log of a custom loop at its steps 0 to 3, with an accuracy every other step."""
    store.write(f"attempts/sweep=s/{attempt}.json", b"{}")
    curves = [{"step": step, "loss": 4.0 - step, "accuracy": None if step % 2 else step / 4} for step in range(4)]
    contents = {"curves": curves} | ({"metrics": metrics} if metrics else {})
    commit_rows(store, attempt, {attempt: contents}, fields=lambda trial_id: {"status": status})


def test_loop_curves_have_last_rows(store: Store) -> None:
    commit_loop(store, "a1", [{"step": 4, "nc1": 0.5}])
    commit_loop(store, "a2", [])
    commit_loop(store, "a3", [{"step": 2, "nc1": 0.5}])
    commit_loop(store, "a4", [], status="diverged")
    rows = results_of(store).sql("select last_loss, accuracy, nc1 from results order by trial_id").fetchall()
    assert rows == [(1.0, 0.5, 0.5), (1.0, 0.5, None), (2.0, 0.5, 0.5), (None, None, None)]


def commit_own_column(store: Store, attempt: str, value: object) -> None:
    store.write(f"attempts/sweep=s/{attempt}.json", b"{}")
    commit_rows(store, attempt, {attempt: {"metrics": [{"nc1": 1.0, "mine": value}]}})


def test_changed_column_type_is_refused(store: Store) -> None:
    commit_own_column(store, "a1", 1.5)
    before = store.list()
    with pytest.raises(TableError, match=r"column 'mine' holds text, but in store .* it holds numbers since .*Rename"):
        commit_own_column(store, "a2", "text")
    assert store.list().keys() - before.keys() == {"attempts/sweep=s/a2.json"}, "nothing else was written"
    assert results_of(store).sql("select mine from metrics").fetchall() == [(1.5,)]


def test_two_typed_column_is_excluded(store: Store) -> None:
    """As two concurrent launches can cause."""
    for attempt, value in (("a1", 1.5), ("a2", "text")):
        commit_own_column(store, attempt, value)
        store.delete("columns")
    results = results_of(store)
    assert results.sql("select count(nc1) from metrics").fetchall() == [(2,)]
    assert "metrics.mine: has the types ['double', 'string']" in str(results.problems[0])


def test_a_new_column_is_null_in_older_files(store: Store) -> None:
    commit(store, "a1", ["t1"])
    commit_own_column(store, "a2", 2.5)
    commit_own_column(store, "a3", None)
    rows = results_of(store).sql("select distinct trial_id, mine from metrics order by all").fetchall()
    assert rows == [("a2", 2.5), ("a3", None), ("t1", None)]


def test_list_columns_survive_compaction(store: Store) -> None:
    for attempt in ("a1", "a2"):
        commit_own_column(store, attempt, [1.0, 2.5])
    compact(store, grace_s=0)
    assert results_of(store).sql("select mine from metrics").fetchall() == [([1.0, 2.5],)] * 2


def test_own_columns_stand_beside_the_standard_ones(store: Store) -> None:
    table = task_table(
        "metrics", [{"layer": 1, "mine": 3}, {"layer": 2}], builtin_columns(), trial_id="t", attempt_id="a"
    )
    assert table["mine"].to_pylist() == [3.0, None]
    assert table["is_last"].to_pylist() == [False, True] and table["step"].to_pylist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metric", [], "unknown|returned table 'metric', expected metrics, curves or features"),
        ("metrics", 3, "is a int, expected a list of dicts"),
        ("metrics", [{"nc1": "high"}], "column 'nc1' holds 'high', expected a number or None"),
        ("metrics", {"nc1": [1, 2], "layer": [1]}, "different lengths"),
        ("features", [{"layer": 1}], "is missing columns feature, kind"),
    ],
)
def test_bad_tables_are_refused(name: str, content: object, message: str) -> None:
    with pytest.raises(TableError, match=message):
        task_table(name, content, builtin_columns(), trial_id="t", attempt_id="a")


def test_frames_and_arrow_tables_are_tables(store: Store) -> None:
    import pandas as pd
    import pyarrow as pa

    frame = pd.DataFrame({"layer": [1, 2], "nc1": [0.5, None]})
    for content in (frame, pa.Table.from_pandas(frame)):
        table = task_table("metrics", content, builtin_columns(), trial_id="t", attempt_id="a")
        assert table["nc1"].to_pylist() == [0.5, None] and table["layer"].to_pylist() == [1, 2]


def test_snapshot_survives_compaction(folder: Store) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    results = results_of(folder)
    assert results.sql("select count(*) from trials").fetchall() == [(2,)]
    commit(folder, C, ["t3"])
    compact(folder, grace_s=0)
    compact(folder, grace_s=0)
    rows = results.sql("select distinct trial_id from metrics order by 1").fetchall()
    assert rows == [("t1",), ("t2",)] and results.sql("select count(*) from trials").fetchall() == [(2,)]
    assert results.problems == []
    assert results.refresh().sql("select count(distinct trial_id) from metrics").fetchall() == [(3,)]


def test_vanished_files_ask_to_reopen(folder: Store, caplog: pytest.LogCaptureFixture) -> None:
    for attempt, trial in ((A, "t1"), (B, "t2"), (C, "t3")):
        commit(folder, attempt, [trial])
    results = results_of(folder)
    assert results.sql("select count(*) from trials").fetchall() == [(3,)]
    folder.delete_many([f"trials/sweep=s/{B}.parquet", f"metrics/sweep=s/{B}.parquet"])
    rows = results.sql("select distinct trial_id from metrics order by 1").fetchall()
    assert rows == [("t1",), ("t3",)] and results.sql("select count(*) from trials").fetchall() == [(2,)]
    assert "1 of 3 trials are deleted" in caplog.text
    assert any("the store has changed" in problem.reason for problem in results.problems)


def test_query_ends_despite_flickering_files(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["f0"], sweep="f0")
    results, plain, looks = results_of(folder), Results._relation, count()

    def relation(self: Results, *given: Any, **named: Any) -> Any:
        number = next(looks)
        for table in ("trials", "metrics"):
            folder.delete(f"{table}/sweep=f{number}")
        commit(folder, f"20260101T000000_{number:012x}", [f"f{number + 1}"], sweep=f"f{number + 1}")
        return plain(self, *given, **named)

    monkeypatch.setattr(Results, "_relation", relation)
    assert results.sql("select distinct trial_id from metrics").fetchall() == [("t1",)]


def test_trial_returns_from_another_attempt(folder: Store) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    results = results_of(folder)
    folder.delete_many([f"trials/sweep=s/{B}.parquet", f"metrics/sweep=s/{B}.parquet"])
    commit(folder, C, ["t2", "t3"])
    rows = results.sql("select distinct trial_id, attempt_id from metrics order by all").fetchall()
    assert rows == [("t1", A), ("t2", C)]


ENDLESS = "select count(*) from range(1000000000) a, range(1000000) b where hash(a.range) = b.range"


def test_query_time_and_memory_limits(folder: Store) -> None:
    commit(folder, A, ["t1"])
    results = results_of(folder)
    with pytest.raises(QueryError, match=r"timed out after 0.2 s. Raise --timeout-seconds"):
        results.sql(ENDLESS, timeout_s=0.2)
    with pytest.raises(QueryError, match=r"exceeds its memory limit .*Raise --memory-gb"):
        results.sql("select list(range) from range(100000000)", memory_gb=0.1)
    assert results.sql("select count(*) from trials", timeout_s=60, memory_gb=0.1).fetchall() == [(1,)]


ALL_TYPES = [*duckdb.sql("select * from test_all_types()").columns, "variant"]
EXPRESSIONS = {
    "'a\\xE4'::blob": "a\\xE4",
    "interval '1 month 3 days'": "1 month 3 days",
    "{'a': interval '1 day'}": "{'a': 1 day}",
    "union_value(a := 1)": "1",
    "time '10:00:00'": "10:00:00",
    "'101'::bit": "101",
    "sum(2)": 2,
    "170141183460469231731687303715884105727::hugeint": 2**127 - 1,
    "1.50::decimal(4,2)": 1.5,
    "map{1: 2.5, 2: 'nan'::double}": [[1, 2.5], [2, None]],
    "timestamptz '2020-01-01 00:00:00+00'": "2020-01-01T00:00:00+00:00",
    "1::variant": "1",
    "[{'v': 'a'::variant}]": "[{'v': a}]",
    "340282366920938463463374607431768211455::uhugeint": str(2**128 - 1),
    "'infinity'::timestamp_ns": "infinity",
    "map{uuid '00000000-0000-0000-0000-000000000001': [1::uhugeint]}": "{00000000-0000-0000-0000-000000000001=[1]}",
}
"""SQL and its value in JSON."""


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS.items())
def test_a_value_of_any_type_is_json(expression: str, value: object) -> None:
    sink = io.StringIO()
    write_json(duckdb.connect().sql(f"select {expression} as x, 1 as y, 2 as y"), sink)
    assert json.loads(sink.getvalue()) == [{"x": value, "y": 2}]


@pytest.mark.parametrize("column", ALL_TYPES)
def test_each_type_of_duckdb_is_written_or_refused(column: str) -> None:
    relation = duckdb.connect().sql(
        f'select "{column}" from (select *, "int"::variant as variant from test_all_types())'
    )
    written = 0
    for write, sink in ((write_csv, io.StringIO()), (write_json, io.StringIO()), (write_parquet, io.BytesIO())):
        try:
            write(relation, sink)
        except QueryError as error:
            assert "::varchar" in str(error)
        else:
            written += 1
    assert written or column == "empty_struct"


def test_bootstrap_and_profile_are_texts_in_parquet() -> None:
    sink = io.BytesIO()
    write_parquet(duckdb.sql("select interval '1 month 3 days' as x, 'a'::blob as y, 'b' as \"a \"\"b\""), sink)
    assert pq.read_table(sink).to_pylist() == [{"x": "1 month 3 days", "y": b"a", 'a "b': "b"}]


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
    ("query", "passed"),
    [
        ("select avg(nc1) from metrics where is_last", ["(is_last == true)"]),
        ("select avg(nc1) from metrics where not is_last", ["invert((is_last == true))"]),
        ("select avg(nc1) from results", ["(is_last == true)"]),
        ("select count(*) from metrics where is_last is null", ["None"]),
    ],
)
def test_last_layer_flag_scans(store: Store, query: str, passed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, A, ["t1", "t2"])
    filters, scanner = list[str](), TableDataset.scanner

    def recorded(self: TableDataset, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        filters.append(str(filter))
        return scanner(self, columns, filter, **options)

    monkeypatch.setattr(TableDataset, "scanner", recorded)
    results = results_of(store)
    rows = results.sql(query).fetchall()
    assert filters == passed
    plain = results.in_memory(["t1", "t2"])  # DuckDB alone evaluates the condition there
    assert rows == plain.sql(query).fetchall()


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


def test_one_layer_reads_few_bytes(s3: S3Server) -> None:
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


def test_stream_restarts_or_raises(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for attempt in (A, B):
        commit(store, attempt, [f"{attempt}-t"])
    results, calls = results_of(store), []

    def read(relation: duckdb.DuckDBPyRelation) -> set[str]:
        calls.append(0)
        if len(calls) == 1:
            path = tmp_path / results.snapshot.files("metrics")[1].path
            path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2"))
        return {row for batch in relation.to_arrow_reader(1) for row in batch["trial_id"].to_pylist()}

    assert results.stream("select trial_id from metrics", read) == {f"{A}-t"} and len(calls) == 2
    assert len(results.problems) == 1

    def fail(relation: duckdb.DuckDBPyRelation) -> None:
        calls.append(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        results.stream("select trial_id from metrics", fail)
    assert calls == [0, 0, 1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured as Linux says it")
def test_scan_holds_no_footers(folder: Store) -> None:
    for number in range(120):
        commit(folder, f"20260101T000000_{number:012x}", [f"t{number}"])
    results = results_of(folder)
    results.sql("select nc1 from metrics where trial_id = 't1'").fetchall()  # imports and start-up
    before = _resident_bytes()
    assert results.sql("select count(trial_id) from metrics").fetchall() != [(0,)]
    assert (_resident_bytes() - before) / 120 < 150_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def part(trial, layer, num_rows, width=64, dtype=np.float32):
    rng = np.random.default_rng([layer, num_rows])
    columns = {"layer": np.full(num_rows, layer), "kind": np.full(num_rows, "sample"), "label": np.arange(num_rows) % 3}
    columns |= {"sample_index": np.arange(num_rows), "feature": rng.normal(size=(num_rows, width)).astype(dtype)}
    return task_table("features", columns, None, trial_id=trial, attempt_id="a")


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 700, 5000])
def test_layer_order_leaves_files_equal(tmp_path, num_rows):
    parts = [part(trial, layer, num_rows) for trial in ("x", "y") for layer in range(7)]
    whole = feature_bytes(pa.concat_tables(parts).combine_chunks())
    store = Store(str(tmp_path))
    for name, pieces in {"layers": parts, "trials": [pa.concat_tables(parts[:7]), pa.concat_tables(parts[7:])]}.items():
        file = FeatureFile()
        for piece in pieces:
            file.add(piece)
        written = file.write(store, f"features/{name}.parquet")
        file.close()
        content = store.read(written.path)
        assert written.has_content(content) and written.rows == 14 * num_rows
        one, other = open_parquet(content), open_parquet(whole)
        assert one.read().equals(other.read())
        sizes = [[f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)] for f in (one, other)]
        assert sizes[0] == sizes[1] and (num_rows < 5000 or sizes[0] == [5000] * 14)


def test_mixed_vector_lengths_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = FeatureFile()
    assert not any(tmp_path.iterdir()), "a killed worker without features leaves no file"
    file.add(part("x", 0, 3))
    with pytest.raises(TableError, match="vectors of .*5.* after .*64"):
        file.add(part("x", 1, 3, width=5))
    file.close()
    assert not any(tmp_path.iterdir())


def test_rows_keep_order_after_refusals(tmp_path, monkeypatch):
    parts = [part(trial, layer, 5000) for trial in "xyz" for layer in range(2)]
    store, file = Store(str(tmp_path)), FeatureFile()
    for number, pieces in enumerate((parts[:2], parts[2:4], parts[4:])):
        for piece in pieces:
            file.add(piece)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", mock.Mock(side_effect=OSError("full")))
            for _ in range(2):
                with pytest.raises(OSError, match="full"):
                    file.write(store, f"features/refused-{number}.parquet")
    written = file.write(store, "features/all.parquet")
    file.close()
    content = store.read(written.path)
    assert written.has_content(content) and written.rows == 30_000
    with open_parquet(content) as one, open_parquet(feature_bytes(pa.concat_tables(parts).combine_chunks())) as other:
        assert one.read().equals(other.read()) and one.schema_arrow.equals(other.schema_arrow, check_metadata=True)
        assert one.num_row_groups == other.num_row_groups


def test_tables_iterators_and_what_has_parts():
    class Kept:
        def parts(self):
            return iter([1, 2])

    found = [list(layer_parts(content)) for content in (None, {"layer": [1]}, iter([1, 2]), Kept())]
    assert found == [[], [{"layer": [1]}], [1, 2], [1, 2]]


@pytest.mark.parametrize("url", ["memory://streams", "local"])
def test_layer_takes_two_requests(tmp_path, url, monkeypatch):
    store = Store(str(tmp_path) if url == "local" else url)
    file = FeatureFile()
    for layer in range(12):
        file.add(part("x", layer, 5000))
    written = file.write(store, "features/sweep=s/a.parquet")
    file.close()
    requests = []
    read_range = Store.read_range
    monkeypatch.setattr(Store, "read_range", lambda self, *given: requests.append(given) or read_range(self, *given))
    for layer in (0, 5, 11):
        requests.clear()
        ((trial, labels, features),) = read_layer(store, written, layer, {"x": "a"})
        expected = part("x", layer, 5000)
        assert trial == "x" and labels.tolist() == expected["label"].to_pylist()
        np.testing.assert_array_equal(features, np.stack(expected["feature"].to_pylist()))
        footer, *others = requests
        assert footer[2] == written.size and len(others) <= 2
        assert sum(stop - start for _, start, stop in others) < 1.5 * written.size / 12
    assert all(one != other for one, other in itertools.pairwise(requests))


SCRIPT = """
import os, sys
import depthrate, s3fs
import depthrate.storage.query.results, depthrate.storage.query.scan as scan

def end(url):
    scan.FETCH_BELOW = 0  # like files of a compaction, which are read in parts
    depthrate.open(url).sql("select * from metrics limit 1").fetchall()
    sys.exit(0)

ends = []
for _ in range(5):
    child = os.fork()  # with all imports, and without store access
    if child == 0:
        end(sys.argv[1])
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ends)
"""


def test_exit_while_arrow_reads_ahead(s3: S3Server) -> None:
    store = Store(s3.new_url())
    for number in range(40):
        commit(store, f"20260101T000000_0000000000{number:02d}", [f"t{number}"])
    call = [sys.executable, "-c", SCRIPT, store.url]
    result = subprocess.run(call, env={**os.environ, **s3.environment}, capture_output=True, text=True, timeout=240)
    assert result.stdout == f"{[0] * 5}\n", result.stdout + result.stderr[-2000:]
