"""Columns of tasks outside the core are only in the files of these tasks. Files of earlier versions keep theirs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import Results
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import Columns, TableError
from depthrate.tasks.registry import registered_task
from tests.support.tests_rows import commit

A, B, C = (f"20260101T000000_{letter * 12}" for letter in "abc")
FORMER = {"metrics": {"tilt": "scalar", "tilts": "vector"}, "curves": {"sway": "scalar"}}
NOW = Columns({"metrics": {"nc1": "scalar"}, "curves": {"loss": "scalar"}}, former=lambda: FORMER)
THEN = Columns({table: {**kinds, **FORMER[table]} for table, kinds in NOW.standard.items()})


def write(store: Store, attempt_id: str, columns: Columns, **row: Any) -> None:
    """Commit a trial `t_<attempt>` with one row of metrics."""
    trial_id = f"t_{attempt_id[-1]}"
    table = task_table("metrics", [{"step": 1, **row}], columns, trial_id=trial_id, attempt_id=attempt_id)
    trial = {"trial_id": trial_id, "sweep": "s", "task": "t", "attempt_id": attempt_id, "status": "ok"}
    trials = [{**trial, "params": json.dumps({"depth": 1})}]
    commit_trials(
        store, sweep="s", attempt_id=attempt_id, part=None, trials=trials, tables={"metrics": [table]}, columns=columns
    )


def write_as_before(store: Store, attempt_id: str, monkeypatch: pytest.MonkeyPatch, **row: Any) -> None:
    """Commit as versions did in which the former columns were standard."""
    with monkeypatch.context() as patch:
        named = lambda file: {name: value for name, value in asdict(file).items() if name != "names_all"}  # noqa: E731
        patch.setattr(DataFile, "to_json", named)
        write(store, attempt_id, THEN, **row)


def columns(store: Store, table: str = "metrics") -> set[str]:
    return set(Results(store, NOW).sql(f"select * from {table}").columns)


def test_a_store_has_the_columns_of_the_tasks_that_are_in_it(folder: Store) -> None:
    write(folder, A, NOW, nc1=0.5)
    assert "nc1" in columns(folder) and not columns(folder) & FORMER["metrics"].keys()
    write(folder, B, NOW, nc1=0.5, tilt=0.25)  # a task that returns a former column without declaring it
    assert columns(folder) & FORMER["metrics"].keys() == {"tilt"}
    assert Results(folder, NOW).sql("select tilt from metrics order by trial_id").fetchall() == [(None,), (0.25,)]


def test_files_of_before_show_all_that_they_hold_through_a_compaction(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as_before(folder, A, monkeypatch, nc1=0.5, tilt=0.25, tilts=[1.0, 2.0])
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
    write_as_before(folder, A, monkeypatch, tilt=0.25)
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
