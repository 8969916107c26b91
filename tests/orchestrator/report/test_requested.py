"""Requested figures: values read from a store by SQL, and plots."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.report.drawing.render import draw
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN, PaperWidth, paper_style
from depthrate.orchestrator.report.figure import HeatMap, Range, Series
from depthrate.orchestrator.report.figure_files import figure_csv
from depthrate.orchestrator.report.figures.requested import SECTION
from depthrate.orchestrator.report.page import render_report
from depthrate.orchestrator.report.read_store import read_all_figures, read_figures
from depthrate.orchestrator.report.report_data import STATE_COLUMNS, FigureContent
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.sweeps.spec import figure_request
from depthrate.tasks.fits.proportions import wilson_interval
from tests.support.report_data import bare_data
from tests.support.tests_rows import commit

TRIALS = pd.DataFrame(
    [
        {"trial_id": f"t{x}{y}{seed}", "width": 8 * x, "lr": 0.1 * y, "seed": seed}
        | dict.fromkeys(STATE_COLUMNS[2:])
        | {"state": "ok"}
        for x in (1, 2, 4)
        for y in (1, 2)
        for seed in (0, 1)
    ]
)
EMPTY = bare_data(trials=TRIALS)


def plots_of(request, **columns):
    axes = {axis: TRIALS[request[axis]] for axis in ("x", "y") if axis in request}
    rows = pd.DataFrame({"trial_id": TRIALS["trial_id"], "height": 0, "weight": 1} | axes | columns)
    return SECTION.draw(replace(EMPTY, figures=[FigureContent(figure_request(request), rows)]))


def marks_of(figure, kind=Series):
    return [mark for facet in figure.facets for mark in facet.marks if isinstance(mark, kind)]


def test_a_curve_is_means_points_and_theory():
    curve = {"kind": "curve", "metric": "nc1", "x": "width", "by": ["lr"], "lines": {"theory": "1"}}
    value = TRIALS["width"] * TRIALS["lr"] + TRIALS["seed"]
    (figure,) = plots_of(curve, value=value, line_0=3 * TRIALS["width"])
    named = {mark.name: mark for mark in marks_of(figure) if mark.is_named}
    assert named.keys() == {"lr 0.1", "lr 0.2"} and [key.name for key in figure.keys] == ["theory"]
    assert named["lr 0.1"].x == [8, 16, 32] and named["lr 0.1"].y == pytest.approx([1.3, 2.1, 3.7])
    theory = [mark.y for mark in marks_of(figure) if mark.name == "theory"]
    (facet,) = figure.facets
    assert theory == [[24, 48, 96]] * 2 and facet.y.is_log and facet.x.ticks == (8, 16, 32)
    assert sum(len(mark.x) for mark in marks_of(figure) if not mark.width) == 12


def test_reference_line_has_gaps():
    line = pd.array([None if width == 8 else 3 * width for width in TRIALS["width"]], dtype="Int64")
    request = {"kind": "curve", "metric": "nc1", "x": "width", "lines": {"theory": "num_classes"}}
    (figure,) = plots_of(request, value=TRIALS["width"] / 7, line_0=line)
    (theory,) = [mark.y for mark in marks_of(figure) if mark.name == "theory"]
    assert np.isnan(theory[0]) and theory[1:] == [48, 96]
    (nowhere,) = plots_of(request, value=TRIALS["width"] / 7, line_0=pd.array([None] * len(TRIALS), dtype="Int64"))
    assert "No values of theory." in nowhere.notes and not nowhere.keys


def test_values_near_each_other_stay_apart():
    (figure,) = plots_of({"kind": "distribution", "metric": "nc1"}, value=1 + 1e-7 * np.arange(len(TRIALS)))
    assert len({y for mark in marks_of(figure) for y in mark.y}) == len(TRIALS)


def test_a_share_has_wilsons_intervals():
    (figure,) = plots_of(
        {"kind": "share", "condition": "c", "x": "width"}, value=TRIALS["width"] < 8 * (1 + TRIALS["seed"]) + 1
    )
    (share,), (bars,) = marks_of(figure), marks_of(figure, Range)
    assert share.y == [1, 0.5, 0] and share.x == [8, 16, 32] and bars.is_bars
    assert (bars.low[1], bars.high[1]) == pytest.approx(wilson_interval(2, 4))
    assert "4 of 4 at 8; 2 of 4 at 16; 0 of 4 at 32" in figure.notes[-1]


def test_a_map_averages_its_cells():
    (figure,) = plots_of({"kind": "map", "metric": "nc1", "x": "width", "y": "lr"}, value=TRIALS.width + TRIALS.seed)
    ((facet,), (heat,)) = figure.facets, marks_of(figure, HeatMap)
    assert heat.values.tolist() == [[8.5, 16.5, 32.5]] * 2
    assert facet.y.names == ("0.2", "0.1") and "Mean of 2 trials per cell" in figure.notes[0]
    assert ">16.5<" in draw(figure)["svg"].decode(), "cells hold numbers"


def test_a_distribution_counts_what_lies_below_a_line():
    (figure,) = plots_of(
        {"kind": "distribution", "metric": "nc1", "by": ["lr"], "lines": {"L": "x"}},
        value=np.arange(12.0), line_0=[4.0] * 12,
    )  # fmt: skip
    assert sum(len(mark.x) for mark in marks_of(figure) if not mark.width) == 12
    assert [n for n in figure.notes if "below L" in n] == ["0.1: 2 of 6 below L (4).", "0.2: 2 of 6 below L (4)."]


def test_a_spectrum_has_a_line_a_layer():
    made = [(t, layer) for t in ("t110", "t111") for layer in (1, 2)]
    rows = pd.DataFrame([{"trial_id": t, "layer": n, "value": [4.0 / n, 1e-3], "height": 0} for t, n in made])
    request = figure_request({"kind": "spectrum", "metric": "singular_values"})
    (figure,) = SECTION.draw(replace(EMPTY, figures=[FigureContent(request, rows)]))
    lines = [(mark.name, mark.y) for mark in marks_of(figure)]
    assert lines == [("layer 1", [4, 1e-3]), ("layer 2", [2, 1e-3])] and figure.facets[0].y.is_log


def test_matrix_has_two_orders():
    grams = [[2.0, 0, 1, 0, 2, 0, 1, 0, 2]] * 11 + [[4.0, 2, 0, 2, 4, 0, 0, 0, 4]]
    heights = [1.0] * 11 + [0.5]
    matrix = {"kind": "matrix", "metric": "class_gram", "order": "class_order", "lowest": "objective"}
    places = [[0.0, 1, 2]] * 11 + [[2.0, 0, 1]]
    (figure,) = plots_of(matrix, value=grams, places=places, height=heights)
    in_class_order, in_other = marks_of(figure, HeatMap)
    assert in_class_order.values.tolist() == [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]] and "t421" in figure.notes[0]
    assert in_other.values.tolist() == [[1, 0, 0], [0, 1, 0.5], [0, 0.5, 1]]
    assert figure.facets[1].x.names == ("2", "0", "1")
    assert draw(figure, formats=["svg"])["svg"] and figure_csv(figure).count("\n") == 1 + 2 * 9


def test_sql_values_and_errors(tmp_path):
    store = Store(str(tmp_path))
    commit(store, "a1", ["x", "y", "z"])
    results = Results(Store(str(tmp_path)), builtin_columns())
    curve = {"kind": "curve", "x": "depth"}
    requests = [
        figure_request(request)
        for request in (
            {**curve, "metric": "nc1 * 2", "lines": {"theory": "depth + 1"}, "where": "depth < 4"},
            {**curve, "metric": "nc1", "layer": -2},
            {"kind": "share", "condition": "nc1 > 6 and depth = 2", "x": "depth"},
            {"kind": "spectrum", "metric": "singular_values"},
            {**curve, "metric": "nc1 +", "title": "Half"},
        )
    ]
    trials = pd.DataFrame({"trial_id": ["x", "y", "elsewhere"], "depth": [2, 3, 4]})
    last, before, share, spectrum, broken = read_figures(results, requests, trials, ["width"])
    assert last.rows[["trial_id", "value", "line_0"]].values.tolist() == [["x", 12.4, 3], ["y", 12.4, 4]]
    assert before.rows["value"].tolist() == pytest.approx([6.1, 6.1])
    assert share.rows["value"].tolist() == [True, False]
    layers = sorted(zip(spectrum.rows["trial_id"], spectrum.rows["layer"], strict=True))
    assert layers[:3] == [("x", 0), ("x", 1), ("x", 2)]
    assert broken.rows.empty and "cannot draw the figure 'Half' (curve)" in broken.message
    assert not SECTION.draw(replace(EMPTY, figures=[broken]))


def test_sql_values_of_layers_points_and_verdicts(tmp_path):
    store = Store(str(tmp_path))
    commit(store, "a1", ["x", "y", "z"])
    results = Results(Store(str(tmp_path)), builtin_columns())
    trials = pd.DataFrame({"trial_id": ["x", "y"], "depth": [2, 3], "lr": [0.1, 0.1]})
    requests = {
        "path": {"metric": "nc1", "x": "layer / 2", "lines": {"twice": "2 * nc1"}},
        "map": {"metric": "nc1", "x": "step", "y": "layer", "by": ["*"]},
        "scatter": {"features": "sample", "by": ["*"], "where": "depth < 3"},
        "verdict": {"metric": "depth", "words": ["a"], "columns": ["nc1"], "lines": {"nc1": "depth / 2"}},
        "share": {"condition": "0.5", "observations": "depth * 10", "x": "depth"},
        "curve": {"metric": "nc1", "x": "depth + 1", "along": "depth", "by": ["*"], "over": "lr"},
        "spectrum": {"metric": "singular_values", "layer": -1, "lines": {"twice": "[4.0, 2.0]"}},
    }
    requests = [figure_request({"kind": kind, **keys}) for kind, keys in requests.items()]
    contents = read_figures(results, requests, trials, ["depth", "lr"])
    assert not [content.problem for content in contents if content.problem]
    path, heat, points, verdict, share, curve, vector = (content.rows for content in contents)
    assert path[["step", "layer"]].values.tolist() == [[5, 0], [5, 1], [5, 2]] * 2
    np.testing.assert_allclose(path["line_0"], 2 * path["value"])
    assert path["x"].tolist() == [0, 0.5, 1] * 2
    assert heat[["step", "layer"]].values.tolist() == [[step, layer] for step in (0, 5) for layer in range(3)] * 2
    assert points[["label", "x", "y"]].values.tolist() == [[0, 7, 8], [1, 10, 11]]
    assert set(points["trial_id"]) == {"x"}, "the first trial of each group with the condition"
    assert verdict[["value", "column_0", "line_0"]].values.tolist() == [[2, 6.2, 1], [3, 6.2, 1.5]]
    assert share[["value", "weight"]].astype(float).values.tolist() == [[0.5, 20], [0.5, 30]]
    assert curve[["value", "x", "along"]].values.tolist() == [[6.2, 3, 2], [6.2, 4, 3]]
    assert [value.tolist() for value in vector["line_0"]] == [[4, 2]] * 2 and vector["layer"].tolist() == [2, 2]
    assert [content.request.by for content in contents] == [(), ("depth", "lr"), ("depth", "lr"), (), (), (), ()]


def test_figures_of_a_task_need_axes_that_vary_and_show_the_chosen_trials(tmp_path):
    store = Store(str(tmp_path))
    commit(store, "a1", ["x", "y", "z"])
    results = Results(Store(str(tmp_path)), builtin_columns())
    trials = pd.DataFrame({"trial_id": ["x", "y", "z"], "depth": [2, 3, 4], "lr": 0.1, "seed": 0})
    over_depth, over_lr = (figure_request({"kind": "curve", "metric": "nc1", "x": x}) for x in ("depth", "lr"))
    params = SimpleNamespace(params={"depth": 2, "lr": 0.1, "seed": 0})
    checked = SimpleNamespace(
        trials=[params], task=SimpleNamespace(figures=(over_depth, over_lr)), sweep=SimpleNamespace(figures=(over_lr,))
    )
    of_sweep, of_task = read_all_figures(checked, results, trials, pd.Series(["x", "z"]))
    assert (of_sweep.request, of_sweep.of_task, of_task.request, of_task.of_task) == (over_lr, False, over_depth, True)
    assert list(of_sweep.rows["trial_id"]) == ["x", "y", "z"] and list(of_task.rows["trial_id"]) == ["x", "z"]


def test_section_only_on_request():
    assert SECTION.section not in render_report(EMPTY)
    rows = pd.DataFrame({"trial_id": TRIALS["trial_id"], "value": 1.0, "x": TRIALS["width"]})
    asked = FigureContent(figure_request({"kind": "curve", "metric": "<b>", "x": "width"}), rows)
    page = render_report(replace(EMPTY, figures=[asked]))
    assert SECTION.section in page and "<b> over" not in page


PAGE = (Path(__file__).parents[3] / "docs/how-to/look.md").read_text()
DOCUMENTED = yaml.safe_load(re.search(r"```yaml\n(figures:.*?)```", PAGE, re.DOTALL)[1])["figures"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", DOCUMENTED, ids=[asked["kind"] for asked in DOCUMENTED])
def test_documented_figures_are_drawn(asked):
    parameters = {"depth": TRIALS["width"] // 8}
    values = {"matrix": [[2.0, 0, 1, 0, 2, 0, 1, 0, 2]] * 12, "spectrum": [[2.0, 1.0]] * 12, "share": TRIALS.seed > 0}
    rows = {
        "trial_id": TRIALS["trial_id"],
        "height": 0.0,
        "weight": 1,
        "value": values.get(asked["kind"], 1.0 + TRIALS["seed"]),
    }
    rows |= {"layer": 1, "step": 5, "places": [[2.0, 0, 1]] * 12, "line_0": 2.0, "column_0": 0.5}
    rows |= {"x": 1.0 + TRIALS["width"], "y": 1.0, "label": 0}
    frame = pd.DataFrame(rows)
    if asked["kind"] == "collapse":
        depth = frame["trial_id"].str[1].astype(int) + 1
        frame = pd.concat([frame.assign(layer=layer, value=layer + 1.0)[depth >= layer] for layer in range(6)])
    content = FigureContent(figure_request(asked), frame)
    data = replace(EMPTY, trials=TRIALS.assign(**parameters), figures=[content])
    if asked["kind"] == "verdict":
        assert "PFC1 rises (2 of 4); 2 (2 of 4)" in SECTION.tables(data)
        return
    (figure,) = SECTION.draw(data)
    for style in (SCREEN, DARK, paper_style(PaperWidth.column)):
        files = draw(figure, style)
        assert b"<svg" in files["svg"] and files["pdf"].startswith(b"%PDF")
