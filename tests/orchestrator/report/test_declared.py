"""Panels that a task declares: drawn from a store, whatever the task, and nothing where there is nothing."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.report.drawing.render_files import draw
from depthrate.orchestrator.report.figure_files import plot_csv
from depthrate.orchestrator.report.figures.declared import MAX_FRAMES, declared_plots, verdict_table
from depthrate.orchestrator.report.page import render_report
from depthrate.tasks.fits.proportions import wilson_interval
from depthrate.tasks.metric import Metric, by_name
from depthrate.tasks.panel import ProfilePanel, ScatterPanel, SharePanel, VerdictPanel
from tests.support.report_data import bare_data

SCATTER = ScatterPanel(kind="thing", title="Things", axes=("Across", "Up"), group="sort", doc="A point a thing.")
PROFILE = ProfilePanel(measurement="sizes", predicted="told_sizes")
VERDICT = VerdictPanel(
    measurement="code", words={0: "no <order>", 1: "in order"}, columns=("size", ("loss", "told_loss")), doc="The rule."
)
MEASUREMENTS = by_name(
    [
        Metric("sizes", "Size by place", "of all things", kind="vector", panel="fitted", entry="Place"),
        Metric("told_sizes", kind="vector", panel="fitted"),
        Metric("code", "Order", panel="fitted"),
        Metric("size", "Size", panel="fitted"),
        Metric("loss", "Loss", per="step"),
    ]
)
STEPS = [0, *(2**power for power in range(16))]


def make_data(steps=STEPS):
    """Two settings with two seeds. The measured sizes are twice the predicted ones."""
    trials, results, lists, points = [], [], [], []
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            trial_id = f"{rate}-{seed}"
            row = {"trial_id": trial_id, "state": "ok", "wall_s": 1.0, "steps_done": 5, "device": "cpu", "host": "h"}
            trials.append(row | {"committed_at": "2025-01-01", "error": None, "rate": rate, "same": 3, "seed": seed})
            code = int(rate == 0.2 or seed == 1)
            results.append({"trial_id": trial_id, "code": code, "size": rate + seed, "loss": 0.5, "told_loss": 0.25})
            told = rate / np.arange(1, 401)
            lists.append({"trial_id": trial_id, "sizes": 2 * told, "told_sizes": told})
            if seed == 0:
                for step in steps:
                    drawn = pd.DataFrame(rng.normal(size=(30, 2)), columns=["x", "y"])
                    points.append(drawn.assign(trial_id=trial_id, step=step, kind="thing", label=np.arange(30) % 3))
    frames = {"trials": pd.DataFrame(trials), "results": pd.DataFrame(results), "lists": pd.DataFrame(lists)}
    panels = (VERDICT, SCATTER, PROFILE)
    return bare_data(**frames, points=pd.concat(points), measurements=MEASUREMENTS, panels=panels)


def test_points_are_coloured_with_a_slider():
    first, second, _ = declared_plots(make_data())
    assert (first.title, second.title) == ("Things, rate = 0.1", "Things, rate = 0.2")
    assert [trace["name"] for trace in first.traces] == ["sort 0", "sort 1", "sort 2"]
    assert len({trace["marker"]["color"] for trace in first.traces}) == 3
    assert sum(len(trace["x"]) for trace in first.traces) == 30 and first.notes[0] == "A point a thing."
    names = [frame["name"] for frame in first.frames]
    assert len(names) == MAX_FRAMES and names[0] == "0" and names[-1] == str(STEPS[-1])
    assert first.frames[-1]["data"] == first.traces != first.frames[0]["data"]
    places = first.layout["sliders"][0]["steps"]
    assert [place["args"][0] for place in places] == [[name] for name in names]


def test_one_step_has_no_slider():
    first, *_ = declared_plots(make_data(steps=[7]))
    assert not first.frames and "sliders" not in first.layout and "Step 7 of one trial, 30 points." in first.notes


def test_a_profile_stands_beside_its_prediction():
    *_, profile = declared_plots(make_data())
    assert profile.layout["xaxis"]["type"] == profile.layout["yaxis"]["type"] == "log"
    assert profile.layout["xaxis"]["title"]["text"] == "Place" and profile.title == "Size by place"
    strong = [trace for trace in profile.traces if trace["line"].get("width") == 2]
    measured, predicted = strong[0], strong[1]
    assert measured["name"] == "rate = 0.1" and predicted["line"]["dash"] == "dash"
    assert measured["y"] == pytest.approx([2 * y for y in predicted["y"]], rel=1e-5)
    assert measured["x"][0] == 1 and measured["x"][-1] == 400


def test_verdict_has_numbers():
    table = verdict_table(make_data(), VERDICT)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table)
    assert cells[:5] == ["0.1", "2", "no &lt;order&gt; (1 of 2); in order (1 of 2)", "0.6000", "0.5000 [0.2500]"]
    assert cells[5:8] == ["0.2", "2", "in order"]
    heads = re.findall(r"<th scope[^>]*>(.*?)</th>", table)
    assert heads == ["rate", "trials", "Order", "Size", "Loss"] and "The rule." in table


@pytest.mark.slow
def test_the_page_and_the_files_hold_them():
    data = make_data()
    page = render_report(data)
    figures = [json.loads(text) for text in re.findall(r'class="plot-data">(.*?)</script>', page)]
    assert [len(figure.get("frames", [])) for figure in figures] == [MAX_FRAMES, MAX_FRAMES, 0]
    assert "no &lt;order&gt;" in page
    for plot in declared_plots(data):
        assert draw(plot)["svg"].startswith(b"<?xml") and plot_csv(plot).count("\n") > 20


def test_undeclared_figures_are_absent():
    data = make_data()
    assert "Collapse and theory" not in render_report(replace(data, panels=()))
    empty = replace(data, results=data.results[["trial_id"]], lists=pd.DataFrame(), points=pd.DataFrame())
    assert declared_plots(empty) == [] and "Collapse and theory" not in render_report(empty)


def test_a_share_against_a_parameter_has_wilson_intervals():
    data = make_data()
    panel = SharePanel(measurement="loss", x="rate", observations=("same",))
    (plot,) = declared_plots(replace(data, panels=(panel,)))
    assert plot.title == "Loss against rate" and plot.traces[-1]["y"] == [0.5, 0.5]
    bars = [trace for trace in plot.traces if trace["mode"] == "lines"]
    assert bars[0]["y"][:2] == pytest.approx(wilson_interval(3, 6), rel=1e-5), "two trials of three observations"
    assert declared_plots(replace(data, panels=(replace(panel, x="same"),))) == []
