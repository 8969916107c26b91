"""The objective's figure shows its limit and the construction's line at the theory's values."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.analysis.columns import known_measurements
from depthrate.orchestrator.report.figures.infinite_depth import SECTION, limit_plots
from depthrate.orchestrator.report.figures.last_layer import matrix_plots
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.supervised.theory import construction_cost
from tests.support.report_data import bare_data

DEPTHS = [2, 3, 5, 9]
LIMIT = 0.02


def data_of(matrices: int, weight_decay: dict[int, float], arch: str | None = None, **columns: Any) -> ReportData:
    """Return trials whose objective is exactly the limit plus the construction's cost."""
    rows = [
        {"trial_id": f"t{depth}", "depth": depth, "arch": arch or f"rn{matrices}", "state": "ok", "dataset": "digits"}
        | {"weight_decay": weight_decay[depth]}
        for depth in DEPTHS
    ]
    gaps = [construction_cost(d - 1, weight_decay[d], matrices=matrices, total_change=1.7) for d in DEPTHS]
    results = pd.DataFrame(rows).assign(objective=[LIMIT + gap for gap in gaps], objective_gap=gaps)
    frames = {"trials": pd.DataFrame(rows), "results": results.assign(**columns)}
    return bare_data(**frames, measurements=known_measurements(COLLAPSE))


def test_distant_bound_keeps_the_scale() -> None:
    equal = dict.fromkeys(DEPTHS, 0.005)
    (plot,) = limit_plots(data_of(1, equal, objective_bound=[2.2, 2.1, 2.0, 1.9], stationary=[1.0] * 4))
    low, high = plot.layout["yaxis"]["range"]
    values = [y for trace in plot.traces for y in trace["y"] if y and trace["legendgroup"] != "bound"]
    assert 10**low < min(values) and max(values) < 10**high < 2 * max(values)
    assert plot.notes == ["The theorem's bound is above the figure: 1.92 to 2.22."]
    (near,) = limit_plots(data_of(1, equal, objective_bound=[0.1, 0.05, 0.04, 0.03], stationary=[1.0] * 4))
    assert not near.notes and "range" not in near.layout["yaxis"]


def lines(data: ReportData) -> dict[str, list[float]]:
    (plot,) = limit_plots(data)
    return {trace["legendgroup"]: trace["y"] for trace in plot.traces if trace["mode"] == "lines" and trace["x"][0]}


@pytest.mark.parametrize(
    ("matrices", "weight_decay"),
    [
        (1, dict.fromkeys(DEPTHS, 0.005)),
        (2, dict.fromkeys(DEPTHS, 0.0025)),
        (2, {depth: 0.005 / depth for depth in DEPTHS}),
    ],
)
def test_construction_line_only_where_it_holds(matrices: int, weight_decay: dict[int, float]) -> None:
    drawn = lines(data_of(matrices, weight_decay))
    assert drawn["limit"] == pytest.approx([LIMIT] * 4)
    assert drawn["construction"] == pytest.approx(drawn["o0"], rel=1e-4)


def test_unknown_construction_shows_the_limit() -> None:
    drawn = lines(data_of(1, dict.fromkeys(DEPTHS, 0.005), arch="t11"))
    assert set(drawn) == {"o0", "limit"}
    assert limit_plots(data_of(1, dict.fromkeys(DEPTHS, 0.005), objective_gap=float("nan"))) == []


def named(data: ReportData) -> set[str]:
    (plot,) = limit_plots(data)
    return {trace["name"] for trace in plot.traces if trace["name"]}


def test_two_matrices_have_no_limit() -> None:
    constant, scaled = dict.fromkeys(DEPTHS, 0.0025), {depth: 0.005 / depth for depth in DEPTHS}
    lower = named(data_of(2, constant))
    assert "lower bound" in lower and "limit for infinite depth" not in lower
    assert "limit for infinite depth" in named(data_of(2, scaled)) & named(data_of(1, constant))


def test_theorem_bound_without_construction() -> None:
    bound, constant = [float("nan"), 0.9, 0.7, 0.5], dict.fromkeys(DEPTHS, 0.005)
    unsaid = data_of(1, constant, objective_bound=bound)
    assert "bound" not in lines(unsaid) and "not shown: it holds for optima" in SECTION.lead(unsaid)
    said = data_of(1, constant, objective_bound=bound, stationary=[1.0, 1.0, 0.0, 1.0])
    assert lines(said)["bound"] == pytest.approx([LIMIT + 0.9, LIMIT + 0.5])
    assert "without a factor" in SECTION.lead(said)


def test_trivial_bound_is_not_drawn() -> None:
    constant, ends = dict.fromkeys(DEPTHS, 0.005), [1.0] * 4
    partly = data_of(1, constant, objective_bound=[float("nan"), 900.0, math.log(10), 0.5], stationary=ends)
    assert lines(partly)["bound"] == pytest.approx([LIMIT + 0.5])
    none = data_of(1, constant, objective_bound=[float("nan"), 900.0, 700.0, 500.0], stationary=ends)
    assert "bound" not in lines(none) and "zero weights are not above it" in SECTION.lead(none)


@pytest.mark.parametrize(("samples_per_class", "has_simplex"), [(20, True), (None, False)])
def test_cosines_compare_with_a_simplex_for_equal_classes(samples_per_class: int | None, has_simplex: bool) -> None:
    data = data_of(1, dict.fromkeys(DEPTHS, 0.005))
    gram = np.array([[2.0, -1.0, -1.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, 2.0]]).flatten()
    lists = pd.DataFrame({"trial_id": data.trials["trial_id"], "class_gram": [gram] * len(DEPTHS)})
    data = replace(data, trials=data.trials.assign(samples_per_class=samples_per_class), lists=lists)
    notes = [note for plot in matrix_plots(data) for note in plot.notes if "Off-diagonal" in note]
    assert notes == ["Off-diagonal mean −0.500 ± 0.000." + " A simplex has −0.500." * has_simplex] * len(DEPTHS)
