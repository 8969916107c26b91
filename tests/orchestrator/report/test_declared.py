"""Panels that a task declares: drawn from a store, whatever the task, and nothing where there is nothing."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.report.drawing.render import draw
from depthrate.orchestrator.report.figure import Range
from depthrate.orchestrator.report.figure_files import figure_csv
from depthrate.orchestrator.report.figures.declared import declared_plots, verdict_table
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


def test_points_have_a_colour_per_label_and_a_facet_per_step():
    first, second, _ = declared_plots(make_data())
    assert (first.title, second.title) == ("Things, rate 0.1", "Things, rate 0.2")
    assert [facet.title for facet in first.facets] == ["step 0", "step 16", "step 1024", "step 32768"]
    for facet in first.facets:
        assert [mark.name for mark in facet.marks] == ["sort 0", "sort 1", "sort 2"] and facet.is_square
        assert len({mark.colour for mark in facet.marks}) == 3 and sum(len(mark.x) for mark in facet.marks) == 30
    assert first.facets[0].marks[0].x != first.facets[-1].marks[0].x and first.notes[0] == "A point a thing."


def test_one_step_has_one_facet():
    first, *_ = declared_plots(make_data(steps=[7]))
    assert len(first.facets) == 1 and "Step 7 of one trial, 30 points." in first.notes


def test_a_profile_stands_beside_its_prediction():
    *_, profile = declared_plots(make_data())
    (facet,) = profile.facets
    assert facet.x.is_log and facet.y.is_log and facet.x.title == "Place" and profile.title == "Size by place"
    measured, predicted = (mark for mark in facet.marks[:3] if not isinstance(mark, Range))
    assert measured.name == "rate 0.1" and predicted.dash == "dash"
    assert measured.y == pytest.approx([2 * y for y in predicted.y])
    assert measured.x[0] == 1 and measured.x[-1] == 400


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
    figures = re.findall("<figure.*?</figure>", page)
    assert [figure.count('role="img"') for figure in figures] == [4, 4, 1] and "no &lt;order&gt;" in page
    for figure in declared_plots(data):
        assert draw(figure)["svg"].startswith(b"<?xml") and figure_csv(figure).count("\n") > 20


def test_undeclared_figures_are_absent():
    data = make_data()
    assert "Collapse and theory" not in render_report(replace(data, panels=()))
    empty = replace(data, results=data.results[["trial_id"]], lists=pd.DataFrame(), points=pd.DataFrame())
    assert declared_plots(empty) == [] and "Collapse and theory" not in render_report(empty)


def test_a_share_against_a_parameter_has_wilson_intervals():
    data = make_data()
    panel = SharePanel(measurement="loss", x="rate", observations=("same",))
    (plot,) = declared_plots(replace(data, panels=(panel,)))
    trials, bars, shares = plot.facets[0].marks
    assert plot.title == "Loss against rate" and shares.y == [0.5, 0.5] and len(trials.x) == 4
    assert (bars.low[0], bars.high[0]) == pytest.approx(wilson_interval(3, 6)), "two trials of three observations"
    assert declared_plots(replace(data, panels=(replace(panel, x="same"),))) == []
