"""Fits from committed rows: values used, groups and exclusions."""

import io
import json
from typing import Any

import pytest
from rich.console import Console
from scipy import stats

from depthrate.orchestrator.analysis.compare import pair_up
from depthrate.orchestrator.analysis.fit_requests import Fits, fit_requests
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.analysis.replicates import interval_text
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.names import curve_label
from depthrate.storage.files.store import Store
from depthrate.storage.query.sql_checks import QueryError
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.tests_rows import commit_rows


def stored(
    store: Store, trials: list[dict[str, Any]], metrics: Any, status: Any = lambda params: "ok", curves: Any = None
) -> list[Trial]:
    planned = {f"t{number}": params for number, params in enumerate(trials)}
    store.write_format()
    store.write("attempts/sweep=s/a.json", b"{}")
    tables = {name: rows for name, rows in {"metrics": metrics, "curves": curves}.items() if rows is not None}
    contents = {t: {name: rows(params) for name, rows in tables.items()} for t, params in planned.items()}
    commit_rows(store, "a", contents, fields=lambda t: {"status": status(planned[t]), "params": json.dumps(planned[t])})
    return [Trial(name, "task", 1, params) for name, params in planned.items()]


def test_parameters_named_like_columns_group_and_order(folder: Store) -> None:
    grid = [{"depth": d, "steps": s, "loss": "ce"} for d in (2, 4, 8) for s in (5, 6, 8)]
    trials = stored(folder, grid, lambda p: [{"layer": p["depth"], "nc1": p["steps"] * p["depth"] ** -0.5}])
    curves = fit_requests(results_of(folder), [FitRequest("nc1", by=("steps", "loss"))], trials).curves
    found = [(c.by, round(c.power.exponent, 6), round(c.power.prefactor, 6)) for c in curves if c.power]
    assert found == [({"steps": steps, "loss": "ce"}, 0.5, float(steps)) for steps in (5, 6, 8)]
    (by_steps, *_) = fit_requests(results_of(folder), [FitRequest("nc1", x="steps", by=("depth",))], trials).curves
    assert by_steps.power is not None and by_steps.power.exponent == pytest.approx(-1)


def test_two_values_of_x_are_no_rate(folder: Store, capsys: pytest.CaptureFixture[str]) -> None:
    grid = [{"depth": d, "seed": s} for d in (2, 4) for s in (0, 1, 2)]
    trials = stored(folder, grid, lambda p: [{"layer": p["depth"], "nc1": (1 + 0.1 * p["seed"]) / p["depth"]}])
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1")], trials).curves
    assert not curve.fits and curve.power is None and len(curve.rows) == 6, "its points are still shown"
    assert curve.note == ("2 values of depth, at least 3 needed")
    print_fits(Console(width=200), Fits(curves=[curve]))
    assert "no fit" in (said := capsys.readouterr().out) and "at least 3 needed" in said
    assert "**" not in (sentence := rates_sheet([curve]).sentences[0]) and "at least 3 needed" in sentence


def test_what_cannot_be_fitted_says_why(folder: Store) -> None:
    trials = stored(folder, [{"depth": d} for d in (2, 4, 8)], lambda p: [{"layer": 1, "nc1": 1 / p["depth"]}])
    curve, unknown = fit_requests(results_of(folder), [FitRequest("nc2a"), FitRequest("nothing")], trials).curves
    assert curve.note == "nothing to fit: 3 not measured" and unknown.excluded == {"not measured": 3}
    (few,) = fit_requests(results_of(folder), [FitRequest("nc1")], trials[:2]).curves
    assert len(few.rows) == 2, "trials of other sweeps are not used"
    assert few.fits == [] and "at least 3 needed" in str(few.note)


def test_two_splits_give_one_value(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        depth = params["depth"]
        return [{"split": s, "layer": depth, "nc1": v / depth} for s, v in (("test", 9), ("train", 1))]

    trials = stored(folder, [{"depth": d} for d in (2, 4, 8)], metrics)
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1")], trials).curves
    assert [row["y"] for row in curve.rows] == [1 / 2, 1 / 4, 1 / 8]


def test_what_is_left_out_is_counted(folder: Store) -> None:
    values = {1: 1.0, 2: 0.5, 4: 0.25, 8: 0.0, 16: None, 32: 3.0, 64: "text"}
    trials = stored(
        folder,
        [{"depth": d} for d in values if d != 64],
        lambda p: [{"layer": 1, "nc1": values[p["depth"]]}],
        lambda p: "diverged" if p["depth"] == 32 else "ok",
    )
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1")], trials).curves
    assert curve.excluded == {"not positive": 1, "not measured": 1, "diverged": 1}
    assert curve.power is not None and curve.power.exponent == pytest.approx(1) and curve.power.n_points == 3
    row = curve.table_rows("s")[0]
    assert row["n_trials"] == 6 and json.loads(row["excluded"]) == curve.excluded


def test_measured_curve_named_like_a_parameter(folder: Store) -> None:
    trials = [{"depth": d, "loss": "ce"} for d in (2, 4, 8)]
    trials = stored(folder, trials, lambda p: [{"layer": 1, "nc1": 1.0}], curves=lambda p: [{"loss": 1 / p["depth"]}])
    results = results_of(folder)
    assert results.sql("select distinct loss from results").fetchall() == [("ce",)]
    (curve,) = fit_requests(results, [FitRequest("loss")], trials).curves
    assert curve.power is not None and curve.power.exponent == pytest.approx(1)


def test_layer_counts_from_either_end(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        depth = params["depth"]
        return [{"layer": layer, "nc1": (layer + 1) / depth} for layer in range(depth + 1)]

    trials = stored(folder, [{"depth": d} for d in (2, 4, 8)], metrics)
    requests = [FitRequest("nc1", layer=layer) for layer in (0, -1, -2, 3)]
    first, last, before, third = fit_requests(results_of(folder), requests, trials).curves
    assert [row["y"] for row in first.rows] == [1 / 2, 1 / 4, 1 / 8]
    assert [row["y"] for row in last.rows] == [3 / 2, 5 / 4, 9 / 8]
    assert [row["y"] for row in before.rows] == [1, 1, 1]
    assert [row["y"] for row in third.rows] == [4 / 4, 4 / 8] and third.excluded == {"not measured": 1}
    assert [row["layer"] for row in before.table_rows("s")] == [-2] * len(before.fits)


def test_filter_excludes_nothing(folder: Store) -> None:
    grid = [{"depth": d, "lr": lr} for d in (2, 4, 8) for lr in (0.1, 0.2)]
    trials = stored(folder, grid, lambda p: [{"layer": 1, "nc1": p["lr"] / p["depth"]}])
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1", where="lr > 0.15 or depth = 2")], trials).curves
    assert sorted(row["y"] for row in curve.rows) == pytest.approx([0.025, 0.05, 0.05, 0.1]) and not curve.excluded
    with pytest.raises(QueryError, match="lrr"):
        fit_requests(results_of(folder), [FitRequest("nc1", where="lrr > 0")], trials)


def test_zero_x_is_excluded_by_name(folder: Store) -> None:
    grid = [{"weight_decay": w} for w in (0.0, 0.1, 0.2, 0.4)]
    trials = stored(folder, grid, lambda p: [{"layer": 1, "nc1": 1.0 + p["weight_decay"]}])
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1", x="weight_decay")], trials).curves
    assert curve.excluded == {"weight_decay not positive": 1} and curve.power is not None
    assert [point["x"] for point in curve.left_out] == [0.0]


def with_curves(store: Store, heights: dict[int, list[float]]) -> list[Trial]:
    """Commit a trial a depth whose objective went through these heights at steps 25, 50, 75 and 100."""

    def curves(p: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"step": 25 * (i + 1), "objective": height} for i, height in enumerate(heights[p["depth"]])]

    rows = [{"depth": d} for d in heights]
    return stored(store, rows, lambda p: [{"step": 100, "layer": 1, "nc1": 1 / p["depth"]}], curves=curves)


def test_falling_objectives_are_counted_and_dropped(folder: Store) -> None:
    heights = {2: [4, 2, 1, 0.995], 4: [4, 2, 1, 0.985], 8: [4, 2, 1, 1.0], 16: [1, 1, 1, 2]}
    trials = with_curves(folder, heights)
    kept, dropped = fit_requests(
        results_of(folder), [FitRequest("nc1"), FitRequest("nc1", unconverged="drop")], trials
    ).curves
    assert kept.unconverged == {"t1", "t3"}, "a rise counts like a fall"
    assert len(kept.rows) == 4 and not kept.excluded and kept.table_rows("s")[0]["n_unconverged"] == 2
    assert dropped.excluded == {"unconverged": 2} and {row["trial_id"] for row in dropped.left_out} == {"t1", "t3"}
    assert [row["x"] for row in dropped.rows] == [2, 8] and dropped.unconverged == frozenset()
    assert (kept.label(), dropped.label(), curve_label(dropped)) == ("", "converged only", "nc1, converged only")


def test_untrained_trials_are_excluded_with_the_cure(folder: Store) -> None:
    def curves(params: Any) -> list[dict[str, Any]]:
        end = 2.3 if (params["depth"], params["seed"]) in ((8, 0), (8, 2)) else 0.01
        return [{"step": step, "objective": y + 0.1, "loss": y} for step, y in ((0, 2.6), (75, end), (100, end))]

    grid = [{"dataset": "digits", "loss": "ce", "depth": d, "seed": s} for d in (2, 3, 5, 8) for s in (0, 1, 2)]
    nc1 = lambda p: [{"step": 100, "layer": 1, "nc1": p["depth"] ** -0.5 * (1 + 0.01 * p["seed"])}]  # noqa: E731
    trials = stored(folder, grid, nc1, curves=curves)
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1")], trials, COLLAPSE).curves
    assert curve.excluded == {"untrained": 2} and len(curve.untrained) == 2 and len(curve.rows) == 10
    print_fits(console := Console(file=io.StringIO(), width=300), Fits(curves=[curve]))
    cure = "Untrained: 2 (trials at the loss of constant predictions, excluded). Lower lr, or raise steps."
    assert cure in console.file.getvalue() and "2 untrained" in console.file.getvalue()  # type: ignore[attr-defined]
    row = curve.table_rows("s", "power")[0]
    assert row["preferred"] == "power" and row["local_exponent"] == curve.sensitivity[-1]["exponent"]


def test_fits_differ_in_one_option(folder: Store) -> None:
    trials = with_curves(folder, {2: [1], 4: [1], 8: [1]})
    asked = [FitRequest("nc1"), FitRequest("nc1", x_min=4)]
    names = [curve.label() for curve in fit_requests(results_of(folder), asked, trials).curves]
    assert names == ["", "x_min 4"]


def test_groups_are_tested_for_one_exponent(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        exponent = {"a": 0.5, "b": 0.5, "c": 1.5}[params["arch"]]
        return [{"layer": 1, "nc1": params["depth"] ** -exponent * (1 + 0.01 * params["seed"])}]

    grid = [{"depth": d, "arch": a, "seed": s} for d in (2, 4, 8) for a in "abc" for s in (0, 1, 2)]
    trials = stored(folder, grid, metrics)
    all_three = fit_requests(results_of(folder), [FitRequest("nc1", by=("arch",))], trials).curves
    two = fit_requests(results_of(folder), [FitRequest("nc1", by=("arch",), where="arch <> 'c'")], trials).curves
    assert all_three[0].common is not None and all_three[0].common.p_common < 1e-6
    assert two[0].common is not None and two[0].common.p_common > 0.9
    assert two[0].common.exponent == pytest.approx(0.5)
    powers = [row for curve in two for row in curve.table_rows("s") if row["model"] == "power"]
    assert [row["common_exponent"] for row in powers] == [two[0].common.exponent] * 2


def test_cut_off_target_and_sensitivity(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        bend = 0.5 if params["depth"] == 2 else 1.0
        return [{"layer": 1, "nc1": bend / params["depth"] * (1 + 0.01 * params["seed"])}]

    grid = [{"depth": d, "seed": s} for d in (2, 4, 8, 16, 32) for s in (0, 1, 2)]
    trials = stored(folder, grid, metrics)
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1", x_min=4, target=0.01)], trials).curves
    assert curve.excluded == {"below the cut-off": 3}
    row = curve.table_rows("s")[0]
    assert row["x_min"] == 4 and row["target"] == 0.01 and row["x_at_target"] == pytest.approx(101, rel=1e-2)
    assert [cut["x_min"] for cut in json.loads(row["sensitivity"])] == [4, 8]
    (fixed,) = fit_requests(results_of(folder), [FitRequest("nc1", x_min=8)], trials).curves
    assert fixed.excluded == {"below the cut-off": 6} and len(fixed.rows) == 9


def test_arithmetic_x_over_whole_seeds(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        return [{"layer": 1, "nc1": (params["depth"] - 1) ** -0.5 * (1 + 0.2 * params["seed"])}]

    planned = [{"depth": d, "seed": s} for d in (1, 2, 4, 8) for s in (0, 1, 2)]
    trials = stored(folder, planned, lambda p: metrics(p) if p["depth"] > 1 else [{"layer": 1, "nc1": 1.0}])
    (curve,) = fit_requests(results_of(folder), [FitRequest("nc1", x="depth - 1")], trials).curves
    assert curve.excluded == {"depth - 1 not positive": 3} and curve.draws == "3 seeds"
    assert curve.power is not None and curve.power.exponent == pytest.approx(0.5)
    assert curve.power.ci_high == pytest.approx(0.5), "a shift of a whole seed does not affect its slope"
    row = curve.table_rows("s")[0]
    assert (row["x"], row["over"], row["n_seeds"], row["ci_method"]) == ("depth - 1", "3 seeds", 3, "seeds")


def test_replicates_of_other_parameters(folder: Store) -> None:
    grid = [{"depth": d, "seed": s, "steps": n} for d in (2, 4, 8) for s in (0, 1, 2) for n in (5, 6)]
    trials = stored(folder, grid, lambda p: [{"layer": 1, "nc1": p["depth"] ** -0.5 * (1 + 0.01 * p["seed"])}])
    requests = [FitRequest("nc1"), FitRequest("nc1", over="steps")]
    over_seeds, over_steps = fit_requests(results_of(folder), requests, trials).curves
    assert over_seeds.power is not None and over_seeds.power.n_seeds == 3
    assert over_steps.draws == "2 values of steps" and over_steps.power is not None and over_steps.power.ci_low is None
    texts = {
        interval_text(FitRequest("nc1"), [{"seed": s, "data_seed": d} for s, d in pairs], ["seed", "data_seed"])
        for pairs in ([(0, 0), (1, 1)], [(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (1, 0)])
    }
    assert texts == {"2 seeds, each with its own data_seed", "2 seeds, at the 2 values of data_seed used", "2 seeds"}
    assert interval_text(FitRequest("nc1"), [{"seed": 0, "seed_scope": "trial"}], []) == "", "each trial is one draw"
    chain = [{"seed": 0, "seed_scope": "trial", "depth": depth, "continuation": [2, 3]} for depth in (2, 3)]
    assert interval_text(FitRequest("nc1"), chain, []) == "1 seed", "in a chain each depth continues the last one"


def test_last_layer_theorem_excludes_other_layers(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        depth, seed = params["depth"], params["seed"]
        return [{"layer": layer, "nc1": (1 + 0.01 * seed * depth) / (depth + layer)} for layer in range(1, depth + 1)]

    grid = [{"arch": "rn1", "samples_per_class": 20, "depth": d, "seed": s} for d in (3, 5, 9) for s in (0, 1, 2)]
    trials = stored(folder, grid, metrics)
    requests = [FitRequest("nc1", layer=layer) for layer in (None, -1, 1, -2)]
    curves = fit_requests(results_of(folder), requests, trials, COLLAPSE).curves
    assert [curve.bound is not None for curve in curves] == [True, True, False, False]


def test_averaged_parameters_are_named(folder: Store) -> None:
    grid = [{"depth": d, "seed": s, "lr": lr, "decay": 1 / d} for d in (2, 4, 8) for s in range(3) for lr in (0.1, 0.2)]
    trials = stored(folder, grid, lambda p: [{"layer": 1, "nc1": p["lr"] / p["depth"] * (1 + 0.01 * p["seed"])}])
    requests = [FitRequest("nc1"), FitRequest("nc1", by=("lr",)), FitRequest("nc1", where="lr = 0.1")]
    both, *apart = fit_requests(results_of(folder), requests, trials).curves
    assert both.draws == "3 seeds, at the 2 values of lr used"
    assert {curve.draws for curve in apart} == {"3 seeds"}, "what x brings with it is no other setting"


def test_two_sweeps_are_compared_over_whole_seeds() -> None:
    def curve(mean: float, slopes: list[float]) -> FittedGroup:
        values = [(x, seed, x ** -(mean + slope)) for seed, slope in enumerate(slopes) for x in (2, 3, 5, 8, 13)]
        rows = [{"x": x, "y": y, "seed": seed, "draw": seed, "trial_id": f"{x} {seed}"} for x, seed, y in values]
        fits = fit_rates([x for x, _, _ in values], [y for _, _, y in values], models=("power",))
        return FittedGroup("nc1", "depth", {}, rows, fits, {})

    own = [-0.3, -0.15, 0.0, 0.15, 0.3]
    pairs = pair_up([curve(0.9, own)], [curve(1.0, own[::-1])]), pair_up([curve(0.9, own)], [curve(1.0, own)])
    (apart,), (alike,) = pairs
    differences = [-0.1 + 2 * slope for slope in own]
    assert apart.common is not None and alike.common is not None
    assert apart.common.p_common == pytest.approx(stats.ttest_1samp(differences, 0).pvalue), (
        "each seed has its own exponent"
    )
    assert alike.common.p_common < 1e-6, "and the same share of it in both"
