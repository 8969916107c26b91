"""Panels of layers: along a path with a prediction, over steps and layers, and one metric against another."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.report.figures.declared import declared_plots
from depthrate.orchestrator.report.page import render_report
from depthrate.tasks.metric import Metric, by_name
from depthrate.tasks.panel import LayerMapPanel, PathPanel, TradeOffPanel
from tests.support.report_data import bare_data

PATH = PathPanel(measurement="size", predicted="told", x="place")
MAP = LayerMapPanel(measurement="size", needs="told")
TRADE = TradeOffPanel(x="place", y="size", along="rate")
MEASUREMENTS = by_name(
    [Metric("size", "Size"), Metric("told", panel="fitted"), Metric("place", "Place", axis="linear", panel="fitted")]
)


def make_data(panels=(PATH, MAP, TRADE)):
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
                    at = {"trial_id": trial_id, "step": step, "split": "train", "layer": layer, "is_last": layer == 4}
                    metrics.append(at | {"size": size, "told": 3 * size, "place": (layer - 2) / 2})
    trials, metrics = pd.DataFrame(trials), pd.DataFrame(metrics)
    last = metrics[metrics["step"] == 8]
    shown = metrics[(metrics["step"] == 8) | metrics["is_last"]]
    frames = {"trials": trials, "results": last[last["is_last"]], "metrics": shown, "layered": metrics}
    return bare_data(**frames, measurements=MEASUREMENTS, panels=panels)


def test_path_has_mean_range_and_prediction():
    (figure,) = declared_plots(make_data((PATH,)))
    (facet,) = figure.facets
    band, mean, told = facet.marks[:3]
    assert mean.x == told.x == [0, 0.5, 1] and mean.name == "rate 0.1" and facet.y.is_log
    single = np.array([9 * 0.1 / layer for layer in (2, 3, 4)])
    np.testing.assert_allclose(mean.y, single * 2**0.5)  # geometric on a log axis
    np.testing.assert_allclose(told.y, 3 * single * 2**0.5)
    np.testing.assert_allclose([band.low, band.high], [single, 2 * single])
    assert told.dash == "dash" and len({mark.colour for mark in facet.marks}) == 2
    assert any("off by a factor of 3 on average" in note for note in figure.notes)


def test_map_has_one_facet_per_group():
    (figure,) = declared_plots(make_data((MAP,)))
    first, second = figure.facets
    assert (first.title, second.title) == ("rate 0.1", "rate 0.2")
    (heat,), (other,) = first.marks, second.marks
    expected = [[np.log10(1.5 * (1 + step) * 0.1 / layer) for step in (0, 8)] for layer in (4, 3, 2)]
    np.testing.assert_allclose(heat.values, expected)
    assert first.y.names == ("4", "3", "2") and first.x.names == ("0", "8")
    assert (heat.low, heat.high) == (other.low, other.high), "one colour means one value"


def test_a_trade_off_goes_along_its_parameter():
    (figure,) = declared_plots(make_data((TRADE,)))
    dots, line = figure.facets[0].marks
    assert len(dots.x) == 4 and not dots.width and line.width
    np.testing.assert_allclose(line.y, [1.5 * 9 * rate / 4 for rate in (0.1, 0.2)])


@pytest.mark.parametrize("gone", ["told", "place", "size"])
def test_nothing_is_drawn_of_what_is_not_measured(gone):
    data = make_data()
    layered = data.layered.drop(columns=gone) if gone == "size" else data.layered.iloc[:0]
    missing = replace(
        data, metrics=data.metrics.drop(columns=gone), results=data.results.drop(columns=gone), layered=layered
    )
    assert [plot.title for plot in declared_plots(missing)] == (["Size against Place"] if gone == "told" else [])
    single = replace(data, trials=data.trials.assign(rate=0.1), panels=(TRADE,))
    assert declared_plots(single) == []


def test_they_stand_on_the_page():
    page = render_report(make_data())
    assert "Size along the path of features" in page and "Size over steps and layers" in page
