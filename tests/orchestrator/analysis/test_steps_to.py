"""Fits of the first step at which a metric passes a threshold: hand-made curves, and trials that never pass."""

import json
import math
from typing import Any

import pytest
from rich.console import Console

from depthrate.orchestrator.analysis.fit_requests import Fits, fit_requests
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.markup import plain
from depthrate.orchestrator.sheet.value_sheets import surface_sheet
from depthrate.storage.files.store import Store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.spec import FitRequest, SweepSpec, check_fits
from depthrate.sweeps.threshold import Threshold, parse_threshold
from depthrate.tasks.supervised.task import COLLAPSE
from tests.orchestrator.analysis.test_aggregate import stored

NAN = math.nan


@pytest.mark.parametrize(
    ("values", "sign", "threshold", "step"),
    [
        ([3, 2, 1, 0.5], "<=", 1.5, 2),
        ([3, 1.5, 1.5, 1.5], "<=", 1.5, 1),  # a tie passes, and the first of equal values counts
        ([3, 1, 2, 0.5], "<=", 1.2, 1),  # it may rise again
        ([1, 2, 3, 4], "<=", 1.0, 0),
        ([3, 2, 1, 0.5], "<=", 0.1, None),
        ([NAN, NAN, 1, NAN], "<=", 1.5, 2),
        ([0.1, NAN, 0.9, 0.95], ">=", 0.9, 2),
        ([NAN] * 4, ">=", 0.0, None),
        ([], "<=", 1.0, None),
    ],
)
def test_first_step(values: list[float], sign: str, threshold: float, step: float | None) -> None:
    assert Threshold("loss", sign, threshold).first_step(list(enumerate(values))) == step


def test_text() -> None:
    assert parse_threshold("loss") is None and parse_threshold("steps_total") is None
    threshold = parse_threshold(" steps_to( accuracy>= 9.9e-1 )")
    assert threshold == Threshold("accuracy", ">=", 0.99) and str(threshold) == "accuracy >= 0.99"
    for text in (
        "steps_to(loss)",
        "steps_to(loss < 1)",
        "steps_to(loss <= low)",
        "steps_to(loss <= 1",
        "steps_to(1 >= loss)",
    ):
        with pytest.raises(SweepError, match=r"expected steps_to\(METRIC <= VALUE\)"):
            parse_threshold(text)


def curve_rows(params: Any) -> list[dict[str, Any]]:
    """Loss (depth / step)^2, so that it falls to 1/4 at step 2 depth. The deepest trial ends before that."""
    depth = params["depth"]
    steps = [0, *(depth * 2**k for k in range(4))] if depth < 16 else [0, 1, 8, 16, 20]
    return [{"step": step, "loss": (depth / step) ** 2 if step else None} for step in steps]


def test_fit_over_depth_counts_the_trials_that_never_pass(folder: Store, capsys: pytest.CaptureFixture[str]) -> None:
    grid = [{"depth": d, "seed": s} for d in (2, 4, 8, 16) for s in (0, 1)]
    trials = stored(folder, grid, lambda p: [{"step": 20, "layer": 1, "nc1": 1.0}], curves=curve_rows)
    requests = [FitRequest(f"steps_to(loss <= {value})") for value in (0.25, 1e-9, 1e9)]
    passed, never, _ = curves = fit_requests(results_of(folder), requests, trials).curves
    assert {(row["x"], row["y"]) for row in passed.rows} == {(2, 4.0), (4, 8.0), (8, 16.0)}
    assert passed.power is not None and passed.power.exponent == pytest.approx(-1)
    assert passed.excluded == {"never loss <= 0.25": 2} and passed.drift is None
    assert "Excluded: 2 never loss <= 0.25." in plain(rates_sheet([passed]).sentences[0])
    row = passed.table_rows("s")[0]
    assert row["metric"] == "steps_to(loss <= 0.25)" and json.loads(row["excluded"]) == passed.excluded
    assert never.excluded == {"never loss <= 1e-09": 8} and "nothing to fit" in str(never.note)
    print_fits(Console(width=200), Fits(curves=curves))
    assert "2 never loss <= 0.25" in capsys.readouterr().out


def test_metric_per_layer_and_without_values(folder: Store) -> None:
    def metrics(params: Any) -> list[dict[str, Any]]:
        depth = params["depth"]
        return [
            {"step": step, "layer": layer, "nc1": depth / step + layer, "is_last": layer == 1}
            for step in (depth, 2 * depth, 4 * depth)
            for layer in (0, 1)
        ]

    trials = stored(folder, [{"depth": d} for d in (2, 4, 8)], metrics)
    requests = [
        FitRequest("steps_to(nc1 <= 1.5)"),
        FitRequest("steps_to(nc1 <= 1)", layer=0),
        FitRequest("steps_to(nc2a <= 1)"),
    ]
    last, first, missing = fit_requests(results_of(folder), requests, trials).curves
    assert [row["y"] for row in last.rows] == [4, 8, 16] and [row["y"] for row in first.rows] == [2, 4, 8]
    assert missing.excluded == {"not measured": 3}


def test_fit_in_two_variables(folder: Store) -> None:
    grid = [{"depth": d, "width": w} for d in (2, 4, 8) for w in (8, 16, 32)]
    trials = stored(folder, grid, lambda p: [{"step": 20, "layer": 1, "nc1": 1.0}], curves=curve_rows)
    (surface,) = fit_requests(
        results_of(folder), [FitRequest("steps_to(loss <= 0.25)", x=("depth", "width"))], trials
    ).surfaces
    assert len(surface.rows) == 9 and surface.table is not None


def test_trials_without_a_logarithm_of_a_variable_are_counted(folder: Store) -> None:
    grid = [{"depth": d, "batch": b} for d in (2, 4, 8) for b in (0, 8, 16, 32)]
    trials = stored(folder, grid, lambda p: [{"step": 20, "layer": 1, "nc1": 1 / (p["depth"] * (1 + p["batch"]))}])
    (surface,) = fit_requests(results_of(folder), [FitRequest("nc1", x=("depth", "batch"))], trials).surfaces
    assert surface.table is not None
    assert "Trials left out: 3 batch not positive." in surface_sheet(surface).remarks


def test_check_names_the_measured_metric() -> None:
    def check(metric: str) -> None:
        check_fits(SweepSpec("s", "collapse", fit=(FitRequest(metric),)), COLLAPSE)

    check("steps_to(accuracy >= 0.99)")
    for metric, words in (
        ("steps_to(los <= 1)", "unknown metric 'los' in fit"),
        ("steps_to(effective_rank >= 3)", "measure only on request"),
        ("steps_to(loss < 1)", "expected steps_to"),
    ):
        with pytest.raises(SweepError, match=words):
            check(metric)
