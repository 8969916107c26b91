"""SQL over the views, read-only."""

from __future__ import annotations

import gc
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import open_results, results_of
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import TableError
from tests.support.tests_rows import commit

A, B, C = (f"20260101T000000_00000000000{letter}" for letter in "abc")


def test_parameters_become_typed_columns(store: Store) -> None:
    commit(store, "a1", ["t1"], params={"depth": 2, "lr": 1.0, "arch": "rn1", "steps": 7, "bias": None, "list": [1, 2]})
    commit(store, "a2", ["t2"], params={"depth": 3, "lr": 2.0, "other": True})
    frame = results_of(store).sql("select * from trials order by trial_id").df()
    assert frame["depth"].tolist() == [2, 3] and frame["lr"].tolist() == [1.0, 2.0]
    assert frame["param_steps"][0] == 7, "a parameter named like a standard column keeps a name of its own"
    assert frame["other"].tolist()[1] is True and list(frame["list"][0]) == [1, 2]


def test_a_parameter_is_not_hidden_by_a_curve_of_its_name(store: Store) -> None:
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
def test_no_column_changes_its_type_when_another_task_enters_the_store(folder: Store, others: dict[str, Any]) -> None:
    """Before, `loss` was a number until the first trial with a parameter of that name, and text from then on."""
    commit(folder, A, ["t1"], params={"depth": 2, "samples": 8})
    before = types_of(results_of(folder))
    commit(folder, B, ["t2"], params=others, sweep="other")
    after = types_of(results_of(folder))
    assert before["last_loss"] == "DOUBLE" and "loss" not in before
    assert {name: kind for name, kind in after.items() if name in before} == before
    assert results_of(folder).sql("select last_loss from results where trial_id = 't1'").fetchall() == [(2.0,)]


def test_the_last_loss_is_there_for_every_sweep_and_errors_name_it(folder: Store) -> None:
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


def test_a_loss_that_is_measured_and_not_logged_is_the_last_loss_too(folder: Store) -> None:
    metrics = [{"layer": 2, "loss": 0.25, "nc1": 1.0}]
    table = task_table("metrics", metrics, builtin_columns(), trial_id="t1", attempt_id=A)
    row = {"trial_id": "t1", "sweep": "s", "task": "t", "attempt_id": A, "status": "ok", "params": '{"loss": "ce"}'}
    tables = {"metrics": [table]}
    commit_trials(folder, sweep="s", attempt_id=A, part=None, trials=[row], tables=tables, columns=builtin_columns())
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
def test_curves_are_in_results_however_they_are_asked_for(store: Store, query: str) -> None:
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


def test_an_error_names_the_column_that_may_have_been_meant(store: Store) -> None:
    commit(store, "a1", ["t1"], params={"depth": 2})
    with pytest.raises(QueryError, match='Did you mean "depth"'):
        results_of(store).sql("select dept from results")


def test_parameters_are_beside_layers_by_the_join_that_the_docs_show_and_the_error_names(store: Store) -> None:
    commit(store, "a1", ["t1", "t2"], params={"depth": 2})
    with pytest.raises(
        QueryError, match=r"depth is a column of trials and results. Add `join trials using \(trial_id\)`. Views"
    ):
        results_of(store).sql("select depth, avg(nc1) from metrics group by depth")
    page = (Path(__file__).parents[2] / "docs/how-to/analyse.md").read_text()
    (documented,) = re.findall(r"```sql\n(select.*?)```", page, re.DOTALL)
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
    tables = {
        name: [task_table(name, rows, builtin_columns(), trial_id=attempt, attempt_id=attempt)]
        for name, rows in {"metrics": metrics, "curves": curves}.items()
        if rows
    }
    row = {"trial_id": attempt, "attempt_id": attempt, "status": status, "params": "{}"}
    commit_trials(
        store, sweep="s", attempt_id=attempt, part=None, trials=[row], tables=tables, columns=builtin_columns()
    )


def test_curves_of_a_loop_are_in_results_with_what_was_logged_last(store: Store) -> None:
    commit_loop(store, "a1", [{"step": 4, "nc1": 0.5}])
    commit_loop(store, "a2", [])
    commit_loop(store, "a3", [{"step": 2, "nc1": 0.5}])
    commit_loop(store, "a4", [], status="diverged")
    rows = results_of(store).sql("select last_loss, accuracy, nc1 from results order by trial_id").fetchall()
    assert rows == [(1.0, 0.5, 0.5), (1.0, 0.5, None), (2.0, 0.5, 0.5), (None, None, None)]


def commit_own_column(store: Store, attempt: str, value: object) -> None:
    store.write(f"attempts/sweep=s/{attempt}.json", b"{}")
    table = task_table(
        "metrics", [{"nc1": 1.0, "mine": value}], builtin_columns(), trial_id=attempt, attempt_id=attempt
    )
    row = {"trial_id": attempt, "attempt_id": attempt, "status": "ok", "params": "{}"}
    commit_trials(
        store,
        sweep="s",
        attempt_id=attempt,
        part=None,
        trials=[row],
        tables={"metrics": [table]},
        columns=builtin_columns(),
    )


def test_a_column_that_changes_its_type_is_refused_at_the_write(store: Store) -> None:
    commit_own_column(store, "a1", 1.5)
    before = store.list()
    with pytest.raises(TableError, match=r"column 'mine' holds text, but in store .* it holds numbers since .*Rename"):
        commit_own_column(store, "a2", "text")
    assert store.list().keys() - before.keys() == {"attempts/sweep=s/a2.json"}, "nothing else was written"
    assert results_of(store).sql("select mine from metrics").fetchall() == [(1.5,)]


def test_a_column_with_two_types_is_left_out_and_named(store: Store) -> None:
    """As two concurrent launches or a store of an older version can cause."""
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


def test_one_moment_is_answered_from_whatever_a_compaction_replaces(folder: Store) -> None:
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


def test_results_whose_files_are_gone_say_that_the_store_moved_on(
    folder: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for attempt, trial in ((A, "t1"), (B, "t2"), (C, "t3")):
        commit(folder, attempt, [trial])
    results = results_of(folder)
    assert results.sql("select count(*) from trials").fetchall() == [(3,)]
    folder.delete_many([f"trials/sweep=s/{B}.parquet", f"metrics/sweep=s/{B}.parquet"])
    rows = results.sql("select distinct trial_id from metrics order by 1").fetchall()
    assert rows == [("t1",), ("t3",)] and results.sql("select count(*) from trials").fetchall() == [(2,)]
    assert "1 of 3 trials are deleted" in caplog.text
    assert any("the store has changed" in problem.reason for problem in results.problems)


def test_a_query_ends_though_something_comes_and_vanishes_each_time_it_looks(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_trial_that_another_attempt_holds_since_its_own_is_gone_still_counts(folder: Store) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    results = results_of(folder)
    folder.delete_many([f"trials/sweep=s/{B}.parquet", f"metrics/sweep=s/{B}.parquet"])
    commit(folder, C, ["t2", "t3"])
    rows = results.sql("select distinct trial_id, attempt_id from metrics order by all").fetchall()
    assert rows == [("t1", A), ("t2", C)]


ENDLESS = "select count(*) from range(1000000000) a, range(1000000) b where hash(a.range) = b.range"


def test_a_query_is_ended_at_its_time_and_refused_beyond_its_memory(folder: Store) -> None:
    commit(folder, A, ["t1"])
    results = results_of(folder)
    with pytest.raises(QueryError, match=r"timed out after 0.2 s. Raise --timeout-seconds"):
        results.sql(ENDLESS, timeout_s=0.2)
    with pytest.raises(QueryError, match=r"exceeds its memory limit .*Raise --memory-gb"):
        results.sql("select list(range) from range(100000000)", memory_gb=0.1)
    assert results.sql("select count(*) from trials", timeout_s=60, memory_gb=0.1).fetchall() == [(1,)]


def test_a_curve_that_a_loop_logs_seldom_is_there_beside_one_that_it_logs_always(store: Store) -> None:
    commit_loop(store, "a1", [{"step": 3, "nc1": 0.5}])
    assert results_of(store).sql("select last_loss, accuracy, nc1 from results").fetchall() == [(1.0, 0.5, 0.5)]
