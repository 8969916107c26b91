"""Columns of tables: names, types, parameters."""

import json
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError, check_expression
from depthrate.storage.tables import custom_columns as own_columns_module
from depthrate.storage.tables.custom_columns import claim_columns, custom_columns
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import Columns, TableError
from depthrate.tasks.parameters import Parameter, ParameterError
from depthrate.tasks.registry import registered_task
from tests.support.tests_rows import A, B, C, commit, commit_rows, tables_of


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


def test_columns_differing_in_case() -> None:
    with pytest.raises(TableError, match="'bend' and 'Bend'|'Bend' and 'bend'"):
        table([{"layer": 1, "bend": 1.0, "Bend": 2.0}])


def test_unencodable_text_is_escaped() -> None:
    converted = table([{"layer": 1, "note": "half \ud800 of a pair", "split": "tr\udcffain"}])
    assert converted["note"].to_pylist() == ["half \\ud800 of a pair"]
    assert converted["split"].to_pylist() == ["tr\\udcffain"]


@pytest.mark.parametrize(("column", "value"), [("layer", 1.5), ("step", 0.1), ("layer", float("nan"))])
def test_fractional_layer_is_refused(column: str, value: float) -> None:
    with pytest.raises(TableError, match=f"column '{column}' holds .*, expected an int"):
        table([{"layer": 1, "nc1": 1.0, column: value}])
    assert table([{"layer": 2.0, "nc1": 1.0}])["layer"].to_pylist() == [2]


def write_as_before(store: Store, name: str) -> None:
    """Commit a trial with a column of this name, as versions did that accepted it."""
    commit_column(store, A, "t1", name, pa.array([7.0] * 6))


@pytest.mark.parametrize("name", ['a"b', "", "NC1", "host", "Wall_S"])
def test_stored_fractional_layer_is_readable(folder: Store, name: str) -> None:
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


def test_parameters_differing_in_case(folder: Store) -> None:
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
    with pytest.raises(QueryError, match='Did you mean "depth"\\? Binder Error'):
        check_expression("dpeth > 2", columns)
    with pytest.raises(QueryError) as caught:
        check_expression("xyzzy > 2", columns)
    assert "Did you mean" not in str(caught.value)


def commit_note(store: Store, attempt_id: str, trial_id: str, note: object, sweep: str = "s") -> None:
    kind = pa.string() if isinstance(note, str) else pa.float64()
    commit_column(store, attempt_id, trial_id, "note", pa.array([note] * 6, kind), sweep)


def commit_column(
    store: Store, attempt_id: str, trial_id: str, name: str, values: pa.Array | None = None, sweep: str = "s"
) -> None:
    values = pa.array([0.5] * 6) if values is None else values
    metrics = tables_of(trial_id, attempt_id)["metrics"].append_column(name, values)
    commit_rows(store, attempt_id, {trial_id: {"metrics": metrics}}, sweep=sweep)


def both_types(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the store of two workers that were first to write 0.5 and "none", before claims were unique."""
    commit_note(store, A, "t1", 0.5)
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.commits.commit.claim_columns", lambda *_: None)
        commit_note(store, B, "t2", "none")
    store.write("columns/metrics/string=note", b"")
    commit_note(store, C, "t3", 0.25)


def test_of_two_writers_at_once_one_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the claims before either writes. Then each claims its type."""
    meet, failures = threading.Barrier(2), []
    look = custom_columns
    looked = threading.local()

    def look_together(store: Store, table: str) -> dict[str, str]:
        claims = look(store, table)
        if not getattr(looked, "once", False):
            looked.once = True
            meet.wait(timeout=30)
        return claims

    monkeypatch.setattr(own_columns_module, "custom_columns", look_together)

    def write(note: object, attempt_id: str, trial_id: str) -> None:
        try:
            commit_note(store, attempt_id, trial_id, note)
        except TableError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=write, args=values) for values in ((0.5, A, "t1"), ("none", B, "t2"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (refused,) = failures
    assert "column 'note' holds" in refused and "since an earlier commit" in refused
    monkeypatch.undo()
    winner = custom_columns(store, "metrics")["note"]
    assert winner in refused or {"double": "numbers", "string": "text"}[winner] in refused
    results = Results(store, builtin_columns())
    assert results.sql("select count(*) from results where note is not null").fetchall() == [(1,)]
    commit_note(store, C, "t3", 0.25 if winner == "double" else "some")
    assert compact(store, grace_s=0).damaged == ()
    assert verify(store).findings == [], "who is refused takes its claim back"


def test_a_claim_is_not_written_over(folder: Store) -> None:
    claim_columns(folder, "metrics", {"note": "double"})
    before = folder.list("columns")
    claim_columns(folder, "metrics", {"note": "double"})
    assert folder.list("columns") == before and len(before) == 1
    with pytest.raises(TableError, match="holds text, but in store .* it holds numbers since an earlier commit"):
        claim_columns(folder, "metrics", {"note": "string"})


def test_a_compaction_leaves_two_types_alone(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    both_types(folder, monkeypatch)
    result = compact(folder, grace_s=0)
    assert result.damaged == (f"trials/sweep=s/{B}.parquet",) and result.commits == 2, "it does not refuse the others"
    results = Results(folder, builtin_columns())
    assert results.sql("select count(*) from trials").fetchall() == [(3,)]
    results.sql("select nc1 from results").fetchall()
    assert any("has the types" in problem.reason for problem in results.problems)
    (finding,) = verify(folder).findings
    assert finding.trial_ids == ("t2",) and "column 'note' holds string, expected double" in finding.what


NOW = Columns({"metrics": {"nc1": "scalar"}, "curves": {"loss": "scalar"}})


def write(store: Store, attempt_id: str, columns: Columns, **row: Any) -> None:
    """Commit a trial `t_<attempt>` with one row of metrics."""
    commit_rows(store, attempt_id, {f"t_{attempt_id[-1]}": {"metrics": [{"step": 1, **row}]}}, columns=columns)


def columns(store: Store, table: str = "metrics") -> set[str]:
    return set(Results(store, NOW).sql(f"select * from {table}").columns)


def test_a_store_has_its_tasks_columns(folder: Store) -> None:
    write(folder, A, NOW, nc1=0.5)
    assert "nc1" in columns(folder) and "tilt" not in columns(folder)
    write(folder, B, NOW, nc1=0.5, tilt=0.25)
    assert "tilt" in columns(folder)
    assert Results(folder, NOW).sql("select tilt from metrics order by trial_id").fetchall() == [(None,), (0.25,)]


def test_the_papers_tasks_bring_their_columns(folder: Store) -> None:
    commit(folder, A, ["t1"])
    declared = {m.name for m in registered_task("words").measurements if m.per == "layer"}
    core = builtin_columns().standard["metrics"].keys()
    assert declared - core and not declared - core & set(results_of(folder).sql("select * from metrics").columns)
    with_words = results_of(folder, registered_task("words")).sql("select * from metrics").columns
    assert declared <= set(with_words), "a task's own are there before it has committed anything"
    write(folder, B, columns_of(registered_task("words")), norm_mean=2.0)
    assert declared <= set(results_of(folder).sql("select * from metrics").columns)


ADDED = {("law", 1): {"eps": 0.5, "sizes": [1, 2], "mode": "a"}, ("other", 1): {}}


def typed_columns(store, *rows, added=ADDED):
    """Commit rows (task, version, parameters), and return the columns of parameters."""
    for number, (task, version, params) in enumerate(rows):
        attempt_id = f"20260101T000000_{number:012x}"
        row = {"trial_id": f"t{number}", "sweep": "s", "task": task, "task_version": version, "status": "ok"}
        row |= {"attempt_id": attempt_id, "params": json.dumps(params)}
        options = {"sweep": "s", "attempt_id": attempt_id, "part": None, "tables": {}}
        commit_trials(store, trials=[row], columns=NOW, **options)
    results = Results(store, NOW, lambda task, version: added.get((task, version), {}))
    found = {}
    for state in ("loose", "compacted"):
        selected = results.sql("select * from trials order by trial_id")
        rows = dict(zip(selected.columns, zip(*selected.fetchall(), strict=True), strict=True))
        names = results.parameter_names()
        found[state] = {name: list(rows[name]) for name in names}
        compact(store, grace_s=0)
        results.refresh()
    assert found["loose"] == found["compacted"]
    return found["loose"]


def test_earlier_trials_show_earlier_values(store):
    table = typed_columns(store, ("law", 1, {"depth": 2}), ("law", 1, {"depth": 3, "eps": 1.5, "mode": "b"}))
    assert table == {"depth": [2, 3], "eps": [0.5, 1.5], "mode": ["a", "b"], "sizes": [[1.0, 2.0]] * 2}


def test_only_the_same_version_is_completed(folder):
    rows = [("law", 1, {"eps": None}), ("law", 2, {"depth": 1}), ("other", 1, {"depth": 2}), ("law", 1, {})]
    table = typed_columns(folder, *rows, added={("law", 1): {"eps": 0.5}, ("other", 1): {}})
    assert table == {"eps": [None, None, None, 0.5], "depth": [None, 1, 2, None]}, "null is a value"


PARAMETERS = {
    "same": ([{"depth": 2, "lr": 0.5}] * 2, {"depth": [2, 2], "lr": [0.5, 0.5]}, ["BIGINT", "DOUBLE"]),
    "int and float": ([{"x": 1}, {"x": 2.5}, {"x": 2**60}], {"x": [1.0, 2.5, 2.0**60]}, ["DOUBLE"]),
    "text and number": ([{"x": "a"}, {"x": 1}, {"x": 0.5}, {"x": 2.0}], {"x": ["a", "1", "0.5", "2"]}, ["VARCHAR"]),
    "text and others": ([{"x": "a"}, {"x": True}, {"x": [1, 2.5]}], {"x": ["a", "true", "[1, 2.5]"]}, ["VARCHAR"]),
    "bool and int": ([{"x": False}, {"x": 1}], {"x": ["false", "1"]}, ["VARCHAR"]),
    "null and list": ([{"x": None}, {"x": []}, {"x": [1, 2]}], {"x": [None, [], [1.0, 2.0]]}, ["DOUBLE[]"]),
    "null everywhere": ([{"x": None}, {"x": None}], {"x": [None, None]}, ["VARCHAR"]),
    "beyond 64 bits": ([{"x": 2**63}], {"x": [2.0**63]}, ["DOUBLE"]),
    "objects": ([{"x": {"a": 1}}], {"x": ['{"a": 1}']}, ["VARCHAR"]),
    "other names": (
        [{"x": 1}, {"X": 3, "trial_id": "p", "tags": 1}],
        {"x": [1, None], "param_X": [None, 3], "param_trial_id": [None, "p"], "tags": [None, 1]},
        ["BIGINT", "BIGINT", "VARCHAR", "BIGINT"],
    ),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_types_of_parameters_between_files(folder, case):
    values, expected, types = PARAMETERS[case]
    assert typed_columns(folder, *(("law", 1, params) for params in values), added={}) == expected
    relation = Results(folder, NOW).sql(f"select {', '.join(expected)} from trials limit 0")
    assert [str(kind) for kind in relation.types] == types


def test_declared_types_hold_without_values(folder):
    """A parameter that is null in a whole pack keeps its type."""
    columns = Columns(NOW.standard, parameters={"lr": "float", "steps_at": "list[int]", "name": "str", "depth": "int"})
    row = {"trial_id": "t", "sweep": "s", "task": "law", "task_version": 1, "attempt_id": A, "status": "ok"}
    row |= {"params": json.dumps({"lr": None, "steps_at": None, "name": None, "depth": 2**70})}
    commit_trials(folder, sweep="s", attempt_id=A, part=None, trials=[row], tables={}, columns=columns)
    relation = Results(folder, NOW).sql("select lr, steps_at, name, depth, params from trials")
    assert [str(kind) for kind in relation.types] == ["DOUBLE", "DOUBLE[]", "VARCHAR", "DOUBLE", "VARCHAR"]
    ((*_, depth, params),) = relation.fetchall()
    assert depth == 2.0**70 and json.loads(params)["depth"] == 2**70, "params are exact"


def test_varying_parameters_of_hidden_rows(folder):
    for attempt, depth in ((A, 2), (B, 3), (C, 3)):
        commit(folder, attempt, [f"t{attempt[-1]}"], params={"depth": depth, "lr": 0.1, "norm": None, "sizes": [1, 2]})
    names = ["depth", "lr", "norm", "sizes"]
    for _ in ("loose", "compacted"):
        assert results_of(folder).varying_parameters(names) == ["depth"]
        assert results_of(folder).only(["tb", "tc"], "s").varying_parameters(names) == []
        compact(folder, grace_s=0)


@pytest.mark.slow
def test_pandas_is_imported_late() -> None:
    code = (
        "import sys\n"
        "import pyarrow as pa\n"
        "from depthrate.storage.tables.from_task import skip_pandas\n"
        "skip_pandas()\n"
        "assert pa.array([1.0, None]).null_count == 1 and 'pandas' not in sys.modules\n"
        "assert pa.table({'a': [1]}).to_pandas()['a'].tolist() == [1]\n"
        "import pandas as pd\n"
        "assert pa.array(pd.Series([1.0, float('nan')])).null_count == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_later_column_of_other_case_is_refused(folder: Store) -> None:
    commit_column(folder, A, "t1", "score")
    with pytest.raises(TableError, match="column 'Score' has in SQL the name of column 'score'"):
        commit_column(folder, B, "t2", "Score")
    assert custom_columns(folder, "metrics") == {"score": "double"} and len(folder.list("columns")) == 1
    commit_column(folder, C, "t2", "score")
    assert Results(folder, builtin_columns()).sql("select count(score) from results").fetchall() == [(2,)]


def test_a_compaction_leaves_both_cases_alone(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_column(folder, A, "t1", "score")
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.commits.commit.claim_columns", lambda *_: None)
        commit_column(folder, B, "t2", "Score")
    folder.write("columns/metrics/double=Score", b"")
    assert compact(folder, grace_s=0).damaged == (f"trials/sweep=s/{B}.parquet",)
