"""Columns of tables: names, types, former columns, parameters."""

import json
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.commits.source import VisibleCommit
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError, check_expression
from depthrate.storage.query.trials_table import TrialsTable
from depthrate.storage.tables import custom_columns as own_columns_module
from depthrate.storage.tables.custom_columns import claim_columns, custom_columns
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import TRIALS, Columns, TableError
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
    assert verify(store, builtin_columns()).findings == [], "who is refused takes its claim back"


def test_a_claim_is_not_written_over(folder: Store) -> None:
    claim_columns(folder, "metrics", {"note": "double"})
    before = folder.list("columns")
    claim_columns(folder, "metrics", {"note": "double"})
    assert folder.list("columns") == before and len(before) == 1
    with pytest.raises(TableError, match="holds text, but in store .* it holds numbers since an earlier commit"):
        claim_columns(folder, "metrics", {"note": "string"})


def test_case_conflicts_are_compacted_and_mended(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    both_types(folder, monkeypatch)
    result = compact(folder, grace_s=0)
    assert result.damaged == (f"trials/sweep=s/{B}.parquet",) and result.commits == 2, "it does not refuse the others"
    results = Results(folder, builtin_columns())
    assert results.sql("select count(*) from trials").fetchall() == [(3,)]
    results.sql("select nc1 from results").fetchall()
    assert any("verify --repair renames one" in problem.reason for problem in results.problems)
    verification = verify(folder, builtin_columns())
    assert {finding.kind for finding in verification.findings} == {"two types"} and len(verification.findings) == 2
    assert any("'note' is a text, but a number since" in finding.what for finding in verification.findings)
    mended = repair(folder, verification)
    assert mended.pending == set() and mended.saved == 1
    results = Results(folder, builtin_columns())
    rows = results.sql("select trial_id, note, note_text, nc1 is not null from results order by 1").fetchall()
    assert rows == [("t1", 0.5, None, True), ("t2", None, "none", True), ("t3", 0.25, None, True)]
    assert verify(folder, builtin_columns()).findings == [] and results.problems == []
    assert compact(folder, grace_s=0).damaged == ()
    assert Results(folder, builtin_columns()).sql("select count(note_text) from results").fetchall() == [(1,)]


FORMER = {"metrics": {"tilt": "scalar", "tilts": "vector"}, "curves": {"sway": "scalar"}}
NOW = Columns({"metrics": {"nc1": "scalar"}, "curves": {"loss": "scalar"}}, former=lambda: FORMER)
THEN = Columns({table: {**kinds, **FORMER[table]} for table, kinds in NOW.standard.items()})


def write(store: Store, attempt_id: str, columns: Columns, **row: Any) -> None:
    """Commit a trial `t_<attempt>` with one row of metrics."""
    commit_rows(store, attempt_id, {f"t_{attempt_id[-1]}": {"metrics": [{"step": 1, **row}]}}, columns=columns)


def write_in_former_version(store: Store, attempt_id: str, monkeypatch: pytest.MonkeyPatch, **row: Any) -> None:
    """Commit as versions did in which the former columns were standard."""
    with monkeypatch.context() as patch:
        named = lambda file: {name: value for name, value in asdict(file).items() if name != "names_all"}  # noqa: E731
        patch.setattr(DataFile, "to_json", named)
        write(store, attempt_id, THEN, **row)


def columns(store: Store, table: str = "metrics") -> set[str]:
    return set(Results(store, NOW).sql(f"select * from {table}").columns)


def test_columns_come_from_stored_tasks(folder: Store) -> None:
    write(folder, A, NOW, nc1=0.5)
    assert "nc1" in columns(folder) and not columns(folder) & FORMER["metrics"].keys()
    write(folder, B, NOW, nc1=0.5, tilt=0.25)  # a task that returns a former column without declaring it
    assert columns(folder) & FORMER["metrics"].keys() == {"tilt"}
    assert Results(folder, NOW).sql("select tilt from metrics order by trial_id").fetchall() == [(None,), (0.25,)]


def test_old_files_survive_compaction(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in_former_version(folder, A, monkeypatch, nc1=0.5, tilt=0.25, tilts=[1.0, 2.0])
    write(folder, B, NOW, nc1=0.75)
    for _ in ("as written", "compacted"):
        rows = Results(folder, NOW).sql("select nc1, tilt, tilts from metrics order by trial_id").fetchall()
        assert rows == [(0.5, 0.25, [1.0, 2.0]), (0.75, None, None)]
        checked = verify(folder, NOW)
        assert not checked.findings and not checked.newer
        compact(folder)
    write(folder, C, NOW, tilt=0.125)
    assert Results(folder, NOW).sql("select sum(tilt) from metrics").fetchall() == [(0.375,)]


def test_a_former_column_keeps_its_type(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in_former_version(folder, A, monkeypatch, tilt=0.25)
    with pytest.raises(TableError, match="tilt"):
        write(folder, B, NOW, tilt="left")
    with pytest.raises(TableError, match="tilt"):
        Columns(NOW.standard, own={"metrics": {"tilt": "vector"}}, former=NOW.former)
    assert Results(folder, NOW).sql("select tilt from metrics").fetchall() == [(0.25,)]


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


def typed_columns(*rows, added=ADDED):
    """Return the columns of rows (task, version, attempt, parameters)."""
    fields = {name: [None] * len(rows) for name in TRIALS.names}
    for name, values in zip(("task", "task_version", "attempt_id", "params"), zip(*rows, strict=True), strict=True):
        fields[name] = [json.dumps(value) for value in values] if name == "params" else list(values)
    trials = pa.table(fields, TRIALS)
    loose = VisibleCommit("trials/sweep=s/a.parquet", trials, trials, True, {})
    table = TrialsTable(Store("memory://"), [loose], lambda task, version: added.get((task, version), {}))
    trials = table.read(lambda name: True)
    return {name: trials[name].to_pylist() for name in table.parameters.values()}


@pytest.mark.parametrize("times", [1, 600])  # large numbers use another reader
def test_trials_from_before_show_the_value_of_before(times):
    table = typed_columns(
        *[("law", 1, "a1", {"depth": 2}), ("law", 1, "a2", {"depth": 3, "eps": 1.5, "mode": "b"})] * times
    )
    expected = {"depth": [2, 3], "eps": [0.5, 1.5], "mode": ["a", "b"], "sizes": [[1.0, 2.0]] * 2}
    assert table == {name: values * times for name, values in expected.items()}


def test_defaults_fill_one_task_version():
    assert typed_columns(("law", 1, "a1", {})) == {"eps": [0.5], "sizes": [[1.0, 2.0]], "mode": ["a"]}
    assert typed_columns(("law", 1, "a1", {"depth": 2}), added={}) == {"depth": [2]}
    assert typed_columns(("law", 1, "a1", {"note": '"eps": 3, "mode":'}))["eps"] == [0.5], "a text is not a key"
    rows = [("law", 1, "a1", {"eps": None}), ("law", 2, "a2", {"depth": 1}), ("other", 1, "a3", {"depth": 2})]
    table = typed_columns(*rows, added={("law", 1): {"eps": 0.5}, ("other", 1): {}})
    assert table == {"eps": [None, None, None], "depth": [None, 1, 2]}, "null is a value"


@pytest.mark.parametrize("values", [[[], None], [[], [None]], [[None, None], [], None]])
def test_lists_without_a_number_are_lists_of_numbers(values):
    rows = [("law", 1, f"a{index}", {"milestones": value}) for index, value in enumerate(values)]
    assert typed_columns(*rows, added={}) == {"milestones": values}


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


def test_columns_of_both_cases_are_named_and_renamed(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_column(folder, A, "t1", "score")
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.commits.commit.claim_columns", lambda *_: None)
        commit_column(folder, B, "t2", "Score")
    folder.write("columns/metrics/double=Score", b"")
    verification = verify(folder, builtin_columns())
    assert {finding.kind for finding in verification.findings} == {"two types"} and len(verification.findings) == 2
    assert any("'Score' has in SQL the name of column 'score'" in finding.what for finding in verification.findings)
    assert compact(folder, grace_s=0).damaged == (f"trials/sweep=s/{B}.parquet",)
    assert repair(folder, verify(folder, builtin_columns())).pending == set()
    results = Results(folder, builtin_columns())
    rows = results.sql("select trial_id, score, Score_number from results order by 1").fetchall()
    assert rows == [("t1", 0.5, None), ("t2", None, 0.5)]
    assert verify(folder, builtin_columns()).findings == [] and results.problems == []
    assert compact(folder, grace_s=0).damaged == ()
