"""The objective's figure shows its limit and the construction's line at the theory's values."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.analysis.columns import known_measurements
from depthrate.orchestrator.report.figure import Figure, Series
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
    assert "bound" not in lines_of(plot)
    assert plot.notes == ["The theorem's bound is above the figure: 1.92 to 2.22."]
    (near,) = limit_plots(data_of(1, equal, objective_bound=[0.1, 0.05, 0.04, 0.03], stationary=[1.0] * 4))
    assert not near.notes and "bound" in lines_of(near)


def lines_of(figure: Figure) -> dict[str, Sequence[float]]:
    marks = [mark for facet in figure.facets for mark in facet.marks if isinstance(mark, Series) and mark.width]
    return {mark.name: [y for y in mark.y if not math.isnan(y)] for mark in marks}


def lines(data: ReportData) -> dict[str, Sequence[float]]:
    (figure,) = limit_plots(data)
    return lines_of(figure)


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
    assert drawn["construction"] == pytest.approx(drawn[""], rel=1e-4)


def test_unknown_construction_shows_the_limit() -> None:
    drawn = lines(data_of(1, dict.fromkeys(DEPTHS, 0.005), arch="t11"))
    assert set(drawn) == {"", "limit"}
    assert limit_plots(data_of(1, dict.fromkeys(DEPTHS, 0.005), objective_gap=float("nan"))) == []


def named(data: ReportData) -> set[str]:
    (figure,) = limit_plots(data)
    return {key.name for key in figure.keys}


def test_two_matrices_have_no_limit() -> None:
    constant, scaled = dict.fromkeys(DEPTHS, 0.0025), {depth: 0.005 / depth for depth in DEPTHS}
    lower = named(data_of(2, constant))
    assert "lower bound" in lower and "limit for infinite depth" not in lower
    assert "limit for infinite depth" in named(data_of(2, scaled)) & named(data_of(1, constant))


def test_theorem_bound_without_construction() -> None:
    bound, constant = [float("nan"), 0.09, 0.07, 0.05], dict.fromkeys(DEPTHS, 0.005)
    unsaid = data_of(1, constant, objective_bound=bound)
    assert "bound" not in lines(unsaid) and "not shown: it holds for optima" in SECTION.lead(unsaid)
    said = data_of(1, constant, objective_bound=bound, stationary=[1.0, 1.0, 0.0, 1.0])
    assert lines(said)["bound"] == pytest.approx([LIMIT + 0.09, LIMIT + 0.05])
    assert "without a factor" in SECTION.lead(said)


def test_trivial_bound_is_not_drawn() -> None:
    constant, ends = dict.fromkeys(DEPTHS, 0.005), [1.0] * 4
    partly = data_of(1, constant, objective_bound=[float("nan"), 900.0, math.log(10), 0.05], stationary=ends)
    assert lines(partly)["bound"] == pytest.approx([LIMIT + 0.05])
    none = data_of(1, constant, objective_bound=[float("nan"), 900.0, 700.0, 500.0], stationary=ends)
    assert "bound" not in lines(none) and "zero weights are not above it" in SECTION.lead(none)


@pytest.mark.parametrize(("samples_per_class", "has_simplex"), [(20, True), (None, False)])
def test_cosines_compare_with_a_simplex_for_equal_classes(samples_per_class: int | None, has_simplex: bool) -> None:
    data = data_of(1, dict.fromkeys(DEPTHS, 0.005))
    gram = np.array([[2.0, -1.0, -1.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, 2.0]]).flatten()
    lists = pd.DataFrame({"trial_id": data.trials["trial_id"], "class_gram": [gram] * len(DEPTHS)})
    data = replace(data, trials=data.trials.assign(samples_per_class=samples_per_class), lists=lists)
    notes = [note for plot in matrix_plots(data) for note in plot.notes if "off-diagonal" in note]
    simplex = " (a simplex has −0.500)" * has_simplex
    expected = f"mean of 1 trial, off-diagonal mean −0.500 ± 0.000{simplex}."
    assert notes == [f"Depth {depth}: {expected}" for depth in DEPTHS]
