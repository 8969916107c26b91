"""Figures of layers: along a path with a prediction, over steps and layers, and one metric against another."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.report.figures.declared import SECTION
from depthrate.orchestrator.report.page import render_report
from depthrate.orchestrator.report.report_data import FigureContent
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.metric import Metric, by_name
from tests.support.report_data import bare_data

PATH = FigureRequest(kind="path", metric="size", lines={"predicted": "told"}, x="place", by=("rate",), y_axis="linear")
MAP = FigureRequest(kind="map", metric="size", x="step", y="layer", by=("rate",), colours="log")
TRADE = FigureRequest(kind="curve", metric="size", x="place", along="rate", y_axis="log")
MEASUREMENTS = by_name([Metric("size", "Size"), Metric("told"), Metric("place", "Place", axis="linear")])


def make_data(*requests):
    """Two rates and seeds, layers 2 to 4 at steps 0 and 8: size 1 / layer, twice that for the second seed, three times each."""
    trials, metrics = [], []
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            trial_id = f"{rate}-{seed}"
            row = {"trial_id": trial_id, "state": "ok", "wall_s": 1.0, "steps_done": 8, "device": "cpu", "host": "h"}
            trials.append(row | {"committed_at": "2025-01-01", "error": None, "rate": rate, "seed": seed})
            for step in (0, 8):
                for layer in (2, 3, 4):
                    size = (1 + seed) * (1 + step) * rate / layer
                    at = {"trial_id": trial_id, "step": step, "layer": layer}
                    metrics.append(at | {"value": size, "line_0": 3 * size, "x": (layer - 2) / 2})
    metrics = pd.DataFrame(metrics)
    last = metrics[metrics["step"] == 8]
    rows = {"path": last, "map": metrics.assign(x=metrics["step"], y=metrics["layer"])}
    along = last["trial_id"].str[:3].astype(float)
    rows["curve"] = last.assign(along=along)[last["layer"] == 4].drop(columns="line_0")
    figures = [FigureContent(request, rows[request.kind], of_task=True) for request in requests]
    return bare_data(trials=pd.DataFrame(trials), figures=figures, measurements=MEASUREMENTS)


def test_path_has_mean_range_and_prediction():
    (figure,) = SECTION.draw(make_data(PATH))
    (facet,) = figure.facets
    band, mean, told = facet.marks[:3]
    assert mean.x == told.x == [0, 0.5, 1] and mean.name == "rate 0.1" and not facet.y.is_log
    single = np.array([9 * 0.1 / layer for layer in (2, 3, 4)])
    np.testing.assert_allclose([mean.y, told.y], [1.5 * single, 4.5 * single])
    np.testing.assert_allclose([band.low, band.high], [single, 2 * single])
    assert told.dash == "dash" and len({mark.colour for mark in facet.marks}) == 2

    (figure,) = SECTION.draw(make_data(replace(PATH, y_axis="log")))
    _, mean, told = figure.facets[0].marks[:3]
    np.testing.assert_allclose([mean.y, told.y], [single * 2**0.5, 3 * single * 2**0.5])  # geometric on a log axis
    assert "Between the ends, predicted Size is off by a factor of 3 on average." in figure.notes


def test_map_has_one_facet_per_group():
    (figure,) = SECTION.draw(make_data(MAP))
    first, second = figure.facets
    assert (first.title, second.title) == ("rate 0.1", "rate 0.2") and figure.title == "Size over Step and Layer"
    (heat,), (other,) = first.marks, second.marks
    expected = [[np.log10(1.5 * (1 + step) * 0.1 / layer) for step in (0, 8)] for layer in (4, 3, 2)]
    np.testing.assert_allclose(heat.values, expected)
    assert first.y.names == ("4", "3", "2") and first.x.names == ("0", "8")
    assert (heat.low, heat.high) == (other.low, other.high), "one colour means one value"


def test_a_curve_goes_along_its_parameter():
    (figure,) = SECTION.draw(make_data(TRADE))
    dots, line = figure.facets[0].marks
    assert len(dots.x) == 4 and not dots.width and line.width and figure.title == "Size over Place"
    np.testing.assert_allclose(line.y, [1.5 * 9 * rate / 4 for rate in (0.1, 0.2)])


@pytest.mark.parametrize("gone", ["line_0", "x", "value"])
def test_nothing_is_drawn_of_what_is_not_measured(gone):
    data = make_data(PATH, MAP, TRADE)
    figures = [
        replace(content, rows=content.rows.assign(**{gone: None}) if gone in content.rows else content.rows)
        for content in data.figures
    ]
    expected = {
        "line_0": ["Size over Step and Layer", "Size over Place"],
        "x": [],
        "value": [],
    }
    assert [plot.title for plot in SECTION.draw(replace(data, figures=figures))] == expected[gone]


def test_they_stand_on_the_page():
    page = render_report(make_data(PATH, MAP))
    assert "Size over Place" in page and "Size over Step and Layer" in page
