"""Figures that a task requests: drawn for any task, and nothing where there is nothing."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from depthrate.orchestrator.report.drawing.render import draw
from depthrate.orchestrator.report.figure import Range
from depthrate.orchestrator.report.figure_files import figure_csv
from depthrate.orchestrator.report.figures.declared import SECTION
from depthrate.orchestrator.report.page import render_report
from depthrate.orchestrator.report.report_data import FigureContent
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.fits.proportions import wilson_interval
from depthrate.tasks.metric import Metric, by_name
from tests.support.report_data import bare_data

BY_RATE = {"by": ("rate",)}
SCATTER = FigureRequest(
    kind="scatter",
    features="thing",
    title="Things",
    x="Across",
    y="Up",
    label="sort",
    note="A point a thing.",
    **BY_RATE,
)
PROFILE = FigureRequest(
    kind="spectrum",
    metric="sizes",
    lines={"predicted": "told_sizes"},
    layer=-1,
    x="Place",
    x_axis="log",
    y_axis="log",
    **BY_RATE,
)
VERDICT = FigureRequest(
    kind="verdict",
    metric="code",
    words=("no <order>", "in order"),
    columns=("size", "loss"),
    lines={"loss": "told_loss"},
    note="The rule.",
    **BY_RATE,
)
SHARE = FigureRequest(kind="share", condition="loss", observations="same", x="rate")
MEASUREMENTS = by_name(
    [
        Metric("sizes", "Size by place", "of all things", kind="vector", panel="fitted"),
        Metric("told_sizes", kind="vector", panel="fitted"),
        Metric("code", "Order", panel="fitted"),
        Metric("size", "Size", panel="fitted"),
        Metric("loss", "Loss", per="step"),
    ]
)
STEPS = [0, *(2**power for power in range(16))]


def make_data(steps=STEPS):
    """Two rates with two seeds. The measured sizes are twice the predicted ones."""
    trials, codes, vectors, points, shares = [], [], [], [], []
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            trial_id = f"{rate}-{seed}"
            row = {"trial_id": trial_id, "state": "ok", "wall_s": 1.0, "steps_done": 5, "device": "cpu", "host": "h"}
            trials.append(row | {"committed_at": "2025-01-01", "error": None, "rate": rate, "same": 3, "seed": seed})
            code = int(rate == 0.2 or seed == 1)
            codes.append(
                {"trial_id": trial_id, "value": code, "column_0": rate + seed, "column_1": 0.5, "line_0": 0.25}
            )
            told = rate / np.arange(1, 401)
            vectors.append({"trial_id": trial_id, "layer": 4, "value": 2 * told, "line_0": told})
            shares.append({"trial_id": trial_id, "value": 0.5, "weight": 3, "x": rate})
            if seed == 0:
                for step in steps:
                    drawn = pd.DataFrame(rng.normal(size=(30, 2)), columns=["x", "y"])
                    points.append(drawn.assign(trial_id=trial_id, step=step, label=np.arange(30) % 3))
    requests = {VERDICT: codes, PROFILE: vectors, SHARE: shares}
    contents = [FigureContent(request, pd.DataFrame(rows), of_task=True) for request, rows in requests.items()]
    contents.insert(1, FigureContent(SCATTER, pd.concat(points), of_task=True))
    return bare_data(trials=pd.DataFrame(trials), figures=contents, measurements=MEASUREMENTS)


def test_points_have_a_colour_per_label_and_a_facet_per_step():
    first, second, *_ = SECTION.draw(make_data())
    assert (first.title, second.title) == ("Things, rate 0.1", "Things, rate 0.2")
    assert [facet.title for facet in first.facets] == ["step 0", "step 16", "step 1024", "step 32768"]
    for facet in first.facets:
        assert [mark.name for mark in facet.marks] == ["sort 0", "sort 1", "sort 2"] and facet.is_square
        assert len({mark.colour for mark in facet.marks}) == 3 and sum(len(mark.x) for mark in facet.marks) == 30
    assert first.facets[0].marks[0].x != first.facets[-1].marks[0].x and first.notes[0] == "A point a thing."


def test_one_step_has_one_facet():
    first, *_ = SECTION.draw(make_data(steps=[7]))
    assert len(first.facets) == 1 and "Step 7 of one trial, 30 points." in first.notes


def test_a_vector_stands_beside_its_prediction():
    *_, profile, _ = SECTION.draw(make_data())
    (facet,) = profile.facets
    assert facet.x.is_log and facet.y.is_log and facet.x.title == "Place" and profile.title == "Size by place"
    measured, predicted = (mark for mark in facet.marks[:3] if not isinstance(mark, Range))
    assert (
        measured.name == "rate 0.1" and predicted.dash == "dash" and [key.name for key in profile.keys] == ["predicted"]
    )
    assert measured.y == pytest.approx([2 * y for y in predicted.y])
    assert measured.x[0] == 1 and measured.x[-1] == 400


def test_verdict_has_numbers():
    table = SECTION.tables(make_data())
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
    assert [figure.count('role="img"') for figure in figures] == [4, 4, 1, 1] and "no &lt;order&gt;" in page
    for figure in SECTION.draw(data)[:3]:
        assert draw(figure)["svg"].startswith(b"<?xml") and figure_csv(figure).count("\n") > 20


def test_undeclared_figures_are_absent():
    data = make_data()
    assert SECTION.section not in render_report(replace(data, figures=[]))
    empty = replace(data, figures=[replace(content, rows=content.rows.iloc[:0]) for content in data.figures])
    assert SECTION.draw(empty) == [] and SECTION.section not in render_report(empty)


def test_a_share_of_observations_has_wilson_intervals():
    *_, plot = SECTION.draw(make_data())
    trials, bars, shares = plot.facets[0].marks
    assert plot.title == "Loss over rate" and shares.y == [0.5, 0.5] and len(trials.x) == 4
    assert (bars.low[0], bars.high[0]) == pytest.approx(wilson_interval(3, 6)), "two trials of three observations"
