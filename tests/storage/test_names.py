"""Names of columns and contents of strings from tasks: rejected, or written so that every reader can read them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError, check_expression
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import TableError
from depthrate.tasks.parameters import Parameter, ParameterError
from tests.support.tests_rows import commit, tables_of

A = "20260101T000000_aaaaaaaaaaaa"


def table(rows: list[dict[str, object]], name: str = "metrics") -> pa.Table:
    return task_table(name, rows, builtin_columns(), trial_id="t", attempt_id=A)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ('a"b', "has a quotation mark"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("a\x00b", "has characters that cannot be printed"),
        ("a\x1b[2Jb", "has characters that cannot be printed"),
        ("a\nb", "has characters that cannot be printed"),
        ("\ud800", "has characters that cannot be printed"),
        ("x" * 61, "has more than 60 characters"),
        ("NC1", "columns 'NC1' and 'nc1' have the same name in SQL"),
        ("Trial_ID", "columns 'Trial_ID' and 'trial_id' have the same name in SQL"),
    ],
)
def test_a_column_that_nobody_could_name_is_refused(name: str, what: str) -> None:
    with pytest.raises(TableError) as caught:
        table([{"layer": 1, "nc1": 1.0, name: 2.0}])
    assert what in str(caught.value)


def test_two_own_columns_may_not_differ_in_capitals_alone() -> None:
    with pytest.raises(TableError, match="'bend' and 'Bend'|'Bend' and 'bend'"):
        table([{"layer": 1, "bend": 1.0, "Bend": 2.0}])


def test_texts_that_no_file_can_hold_are_written_out() -> None:
    converted = table([{"layer": 1, "note": "half \ud800 of a pair", "split": "tr\udcffain"}])
    assert converted["note"].to_pylist() == ["half \\ud800 of a pair"] and converted["split"].to_pylist() == [
        "tr\\udcffain"
    ]


@pytest.mark.parametrize(("column", "value"), [("layer", 1.5), ("step", 0.1), ("layer", float("nan"))])
def test_a_layer_that_is_no_whole_number_is_not_cut_to_one(column: str, value: float) -> None:
    with pytest.raises(TableError, match=f"column '{column}' holds .*, expected an int"):
        table([{"layer": 1, "nc1": 1.0, column: value}])
    assert table([{"layer": 2.0, "nc1": 1.0}])["layer"].to_pylist() == [2]


def write_as_before(store: Store, name: str) -> None:
    """Commit a trial with a column of this name, as versions did that accepted it."""
    metrics = tables_of("t1", A)["metrics"].append_column(name, pa.array([7.0] * 6))
    row = {
        "trial_id": "t1",
        "sweep": "s",
        "task": "t",
        "attempt_id": A,
        "status": "ok",
        "params": json.dumps({"depth": 2}),
    }
    tables = {"metrics": [metrics]}
    commit_trials(store, sweep="s", attempt_id=A, part=None, trials=[row], tables=tables, columns=builtin_columns())


@pytest.mark.parametrize("name", ['a"b', "", "NC1", "host", "Wall_S"])
def test_a_store_that_has_such_a_column_is_read_all_the_same(folder: Store, name: str) -> None:
    write_as_before(folder, name)
    commit(folder, "20260101T000000_bbbbbbbbbbbb", ["t2"], sweep="other")
    results = Results(folder, builtin_columns())
    rows = results.sql("select trial_id, nc1, host from results order by 1").fetchall()
    assert [row[0] for row in rows] == ["t1", "t2"] and all(nc1 == pytest.approx(6.2) for _, nc1, _ in rows)
    assert all(host is None for _, _, host in rows)
    if name == 'a"b':
        assert results.sql('select "a""b" from results where trial_id = \'t1\'').fetchall() == [(7.0,)]
    elif name in ("", "NC1"):
        assert any("in SQL the name of another column" in problem.reason for problem in results.problems)


def test_parameters_that_differ_in_capitals_alone_have_columns_of_their_own(folder: Store) -> None:
    commit(folder, A, ["t1"], params={"n": 3, "N": 5, "Host": 7})
    rows = Results(folder, builtin_columns()).sql('select n, "param_N", "param_Host" from results').fetchall()
    assert rows == [(3, 5, 7)]


@pytest.mark.parametrize("value", ["\ud800", "a\x00b"])
def test_a_parameter_that_is_no_text_is_refused(value: str) -> None:
    with pytest.raises(ParameterError, match="parameter 'flag' is .*, expected a str"):
        Parameter(name="flag", kind="str").check(value)


def test_a_question_that_is_no_text_is_refused(folder: Store) -> None:
    commit(folder, A, ["t1"])
    with pytest.raises(QueryError, match="contains invalid characters"):
        Results(folder, builtin_columns()).sql("select '\ud800'")
    with pytest.raises(QueryError, match="contains invalid characters"):
        check_expression("nc1 > '\ud800'", None)


@pytest.mark.parametrize(
    "text", ["a), (b", "a > 1) or (b > 1", "a as x", "a from results", "a > 1; select 1", "", "-- a"]
)
def test_an_expression_cannot_leave_its_parentheses(text: str) -> None:
    with pytest.raises(QueryError, match="is not an SQL expression"):
        check_expression(text, {"a": "DOUBLE", "b": "DOUBLE"})
    with pytest.raises(QueryError, match="is not an SQL expression"):
        check_expression(text, None)


def test_only_a_similar_column_is_suggested() -> None:
    columns = {"depth": "INTEGER", "deviations": "DOUBLE", "patch_size": "INTEGER"}
    with pytest.raises(QueryError, match='Did you mean "depth"\\?$'):
        check_expression("dpeth > 2", columns)
    with pytest.raises(QueryError) as caught:
        check_expression("xyzzy > 2", columns)
    assert "Did you mean" not in str(caught.value)
