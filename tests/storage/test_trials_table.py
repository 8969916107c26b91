"""Trials read by column: the same values and types, loose or compacted, whatever columns and parameters are read."""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
from depthrate.storage.query.results import Results
from depthrate.storage.query.views import may_name
from depthrate.storage.tables.parameters import PARAMETERS_KEY, TypedParameters, with_typed_parameters
from depthrate.storage.tables.schema import TRIALS
from tests.support.tests_rows import A, B, C, commit

Params = dict[str, Any]


def rows_of(results: Results) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
    relation = results.sql("select * from trials order by trial_id")
    order = sorted(range(len(relation.columns)), key=lambda index: relation.columns[index])
    rows = [tuple(row[index] for index in order) for row in relation.fetchall()]
    return [relation.columns[i] for i in order], [str(relation.types[i]) for i in order], rows


CASES: dict[str, list[Params]] = {
    "same": [{"depth": 2, "lr": 0.5, "steps": 5}] * 3,
    "int and float": [{"x": 1}, {"x": 2.5}, {"x": 2**60}],
    "text and number": [{"x": "a"}, {"x": 1}, {"x": 0.5}],
    "text and text of JSON": [{"x": "a"}, {"x": '{"a": 1}'}, {"x": True}],
    "null and list": [{"x": None}, {"x": []}, {"x": [1, 2]}],
    "null everywhere": [{"x": None, "y": 1}, {"x": None, "y": 1}, {"x": None, "y": 2}],
    "other names": [{"x": 1}, {"y": 2}, {"X": 3, "trial_id": "p", "tags": 1}],
    "objects": [{"x": {"a": 1}}, {"x": {"a": 2}}, {"x": 3}],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_loose", [0, 1])
def test_values_and_types_are_those_of_loose_commits(
    store: Store, case: str, num_loose: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (attempt, params) in enumerate(zip((A, B, C), CASES[case], strict=True)):
        commit(store, attempt, [f"t{number}a", f"t{number}b"], hour=number, params=params, sweep=f"s{number % 2}")
        if number < 2:
            commit(store, f"{attempt[:-2]}zz", [f"u{number}"], hour=number, params=params, sweep=f"s{number % 2}")
        if number == 2 - num_loose:
            compact(store, grace_s=0)
    loose = results_of(store, snapshot=None)
    read = rows_of(loose)
    scoped = [rows_of(loose.for_sweep(sweep)) for sweep in ("s0", "s1")]
    monkeypatch.setattr(TypedParameters, "from_metadata", staticmethod(lambda metadata, num_rows: None))
    parsed = results_of(store)
    assert rows_of(parsed) == read
    assert [rows_of(parsed.for_sweep(sweep)) for sweep in ("s0", "s1")] == scoped


def test_the_trials_of_a_compaction_are_read_without_their_json(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    params: list[Params] = [{"depth": depth, "lr": 0.1, "norm": None, "sizes": [1, 2]} for depth in (2, 3, 3)]
    for attempt, of_attempt in zip((A, B, C), params, strict=True):
        commit(folder, attempt, [f"t{attempt[-1]}"], params=of_attempt)
    before = rows_of(results_of(folder))
    compact(folder, grace_s=0)
    assert rows_of(results_of(folder)) == before
    results = results_of(folder)
    monkeypatch.setattr("depthrate.storage.query.trials_table.completed_texts", None)
    assert results.sql("select depth, lr, norm, sizes from trials order by 1").fetchall() == [
        (of_attempt["depth"], 0.1, None, [1.0, 2.0]) for of_attempt in params
    ]
    assert results.constant_parameters() == {"lr", "norm", "sizes"}
    assert results.varying_parameters() == {"depth"}
    remove(folder, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(folder), ["ta"]))
    hidden = results_of(folder)
    assert hidden.sql("select trial_id, depth from trials order by 1").fetchall() == [("tb", 3), ("tc", 3)]
    assert hidden.varying_parameters() == set()
    assert hidden.for_sweep("s").sql("select sum(depth) from results").fetchall() == [(6,)]


@pytest.mark.parametrize(
    "damage",
    [
        b"{half",
        b"[]",
        b'{"names": [], "constants": 3, "varying": ""}',
        b'{"names": [], "constants": {}, "varying": "!"}',
        json.dumps({"names": [], "constants": {}, "varying": base64.b64encode(b"PAR1 PAR1").decode()}).encode(),
        json.dumps({"names": ["x"], "constants": {}, "varying": ""}).encode(),
    ],
)
def test_parameters_that_are_not_typed_are_parsed(damage: bytes) -> None:
    assert TypedParameters.from_metadata({PARAMETERS_KEY: damage}, 2) is None
    assert TypedParameters.from_metadata(None, 2) is None


def test_typed_parameters_of_another_number_of_trials_are_not_used() -> None:
    fields = {name: [None] * 2 for name in TRIALS.names} | {
        "attempt_id": ["a", "b"],
        "params": ['{"x": 1}', '{"x": 2}'],
    }
    metadata = with_typed_parameters(pa.table(fields, TRIALS)).schema.metadata
    typed = TypedParameters.from_metadata(metadata, 2)
    assert typed is not None and typed.varying["x"].to_pylist() == [1, 2]
    assert TypedParameters.from_metadata(metadata, 3) is None


@pytest.mark.parametrize(
    "query",
    [
        "select * from trials",
        "from trials",
        "select t from trials t",
        'select "t t" from trials "t t"',
        "select t from t: trials",
        "select d from trials t(a, b, c, d)",
        'select d from results AS "t" (a, b, c, d)',
        "select depth from (from trials) x",
        "with x as (table trials) select 1 from x",
        "select count(trials) from trials",
        "select columns('d.*') from results",
        "select 1 from metrics natural join trials",
        "summarize trials",
        "pivot trials on sweep",
        "select depth from results",
        "select min(Depth) from trials",
        "select t from trials /* all */ t",
        "select t from trials -- all\n as t",
        'select t from "trials" t',
        'select t from t: "Results"',
        "select x from trials/* a */t/* b */(a, x)",
        "from results where task <> 'select'",
        "from results -- select",
        "select 'select' = $$select$$, \"select\" from (from results)",
        "from /* select */ trials",
        "select /* from */ t from results /* /* nested */ */ as /**/ t",
    ],
)
def test_a_column_that_a_query_can_refer_to_is_read(query: str) -> None:
    assert may_name(query, "depth")


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from trials",
        "select min(lr) is distinct from max(lr) from trials",
        "select t.lr from trials as t where t.lr > 0",
        "select lr, avg(nc1) from results group by all",
        "select lr /* all * of from */ from trials -- table",
        "select lr from results where task = 'from * columns trials'",
    ],
)
def test_a_column_that_no_query_can_refer_to_is_not_read(query: str) -> None:
    assert not may_name(query, "depth") and may_name(query, "größe") and may_name(query, 'a"b')


def test_a_file_changed_after_the_opening_is_reported(folder: Store) -> None:
    for attempt in (A, B):
        commit(folder, attempt, [f"t{attempt[-1]}"])
    commit(folder, C, ["tc"], sweep="other")
    compact(folder, grace_s=0)
    results = results_of(folder)
    (path,) = (path for path in folder.list("trials") if "compact" in path)
    changed = bytearray(folder.read(path))
    changed[len(changed) // 2] ^= 16
    Path(folder.full_path(path)).write_bytes(bytes(changed))
    assert results.sql("select trial_id, depth from trials").fetchall() == [("tc", 2)]
    assert any(path in str(problem) for problem in results.problems)
