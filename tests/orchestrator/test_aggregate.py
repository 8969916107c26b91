"""From committed rows to fits: which values are used, how they are grouped, what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.aggregate import fit_curves
from storage.commit import commit_trials
from storage.files import Files
from storage.query import Results
from storage.schema import task_table
from sweeps.sweep import FitRequest
from sweeps.trial import Trial


def store(files: Files, trials: list[dict[str, Any]], metrics: Any, status: Any = lambda params: "ok") -> list[Trial]:
    planned = [Trial(f"t{number}", "task", 1, params) for number, params in enumerate(trials)]
    files.write("attempts/sweep=s/a.json", b"{}")
    tables = [task_table("metrics", metrics(t.params), trial_id=t.trial_id, attempt_id="a") for t in planned]
    rows = [
        {"trial_id": t.trial_id, "attempt_id": "a", "status": status(t.params), "params": json.dumps(t.params)}
        for t in planned
    ]
    commit_trials(files, sweep="s", attempt_id="a", part=None, trials=rows, tables={"metrics": tables})
    return planned


def test_parameters_named_like_columns_group_and_order(files: Files) -> None:
    grid = [{"depth": d, "steps": s, "loss": "ce"} for d in (2, 4, 8) for s in (5, 6)]
    trials = store(files, grid, lambda p: [{"layer": p["depth"], "nc1": p["steps"] * p["depth"] ** -0.5}])
    curves = fit_curves(Results(files), [FitRequest("nc1", by=("steps", "loss"))], trials)
    assert [(c.by, round(c.power.exponent, 6), round(c.power.prefactor, 6)) for c in curves if c.power] == [
        ({"steps": 5, "loss": "ce"}, 0.5, 5.0),
        ({"steps": 6, "loss": "ce"}, 0.5, 6.0),
    ]
    (by_steps, *_) = fit_curves(Results(files), [FitRequest("nc1", x="steps", by=("depth",))], trials)
    assert by_steps.power is not None and by_steps.power.exponent == pytest.approx(-1)


def test_one_value_a_trial_though_it_has_two_splits(files: Files) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        depth = params["depth"]
        return [{"split": s, "layer": depth, "nc1": v / depth} for s, v in (("test", 9), ("train", 1))]

    trials = store(files, [{"depth": d} for d in (2, 4, 8)], metrics)
    (curve,) = fit_curves(Results(files), [FitRequest("nc1")], trials)
    assert [row["y"] for row in curve.rows] == [1 / 2, 1 / 4, 1 / 8]


def test_what_is_left_out_is_counted(files: Files) -> None:
    values = {1: 1.0, 2: 0.5, 4: 0.25, 8: 0.0, 16: None, 32: 3.0, 64: "text"}
    trials = store(
        files,
        [{"depth": d} for d in values if d != 64],
        lambda p: [{"layer": 1, "nc1": values[p["depth"]]}],
        lambda p: "diverged" if p["depth"] == 32 else "ok",
    )
    (curve,) = fit_curves(Results(files), [FitRequest("nc1")], trials)
    assert curve.excluded == {"not positive": 1, "not measured": 1, "diverged": 1}
    assert curve.power is not None and curve.power.exponent == pytest.approx(1) and curve.power.n_points == 3
    row = curve.table_rows("s")[0]
    assert row["n_trials"] == 6 and json.loads(row["excluded"]) == curve.excluded


def test_no_fit_says_why(files: Files) -> None:
    trials = store(files, [{"depth": 2}], lambda p: [{"layer": 2, "nc1": 1.0}])
    (curve, missing) = fit_curves(Results(files), [FitRequest("nc1"), FitRequest("nothing")], trials)
    assert curve.fits == [] and "distinct x" in str(curve.note)
    assert missing.excluded == {"not measured": 1}


def test_trials_of_other_sweeps_are_not_used(files: Files) -> None:
    trials = store(files, [{"depth": d} for d in (2, 4, 8)], lambda p: [{"layer": 1, "nc1": 1 / p["depth"]}])
    (curve,) = fit_curves(Results(files), [FitRequest("nc1")], trials[:2])
    assert len(curve.rows) == 2


def test_a_measured_curve_is_fitted_though_a_parameter_has_its_name(files: Files) -> None:
    files.write("attempts/sweep=s/a.json", b"{}")
    trials = [Trial(f"t{d}", "task", 1, {"depth": d, "loss": "ce"}) for d in (2, 4, 8)]
    tables: dict[str, list[Any]] = {"metrics": [], "curves": []}
    for trial in trials:
        for name, row in (("metrics", {"layer": 1, "nc1": 1.0}), ("curves", {"loss": 1 / trial.params["depth"]})):
            tables[name].append(task_table(name, [row], trial_id=trial.trial_id, attempt_id="a"))
    rows = [
        {"trial_id": t.trial_id, "attempt_id": "a", "status": "ok", "params": json.dumps(dict(t.params))}
        for t in trials
    ]
    commit_trials(files, sweep="s", attempt_id="a", part=None, trials=rows, tables=tables)
    results = Results(files)
    assert results.sql("select distinct loss from results").fetchall() == [("ce",)]
    (curve,) = fit_curves(results, [FitRequest("loss")], trials)
    assert curve.power is not None and curve.power.exponent == pytest.approx(1)
