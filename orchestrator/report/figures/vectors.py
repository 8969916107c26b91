"""The vectors measured at the last layer: spectra over their largest entry, others as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import finite_arrays
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.plot import Axes, Plot
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.section import ReportSection
from depthrate.orchestrator.report.text import escape
from depthrate.tasks.metric import Metric

SECTION = "Vectors and matrices of the last layer"


def vector_plots(data: ReportData) -> list[Plot]:
    """Draw each vector entry by entry, averaged over the trials of one group."""
    plots = [_vector_plot(data, vector) for vector in _vectors(data)]
    return [plot for plot in plots if plot is not None]


def _vectors(data: ReportData) -> list[Metric]:
    return data.drawn("layer", ("always", "spectrum"), kind="vector")


def _vector_plot(data: ReportData, each: Metric) -> Plot | None:
    is_spectrum = each.panel == "spectrum"
    rows: list[dict[str, Any]] = []
    for trial_id, values in finite_arrays(data.trials, data.lists, each.name):
        if is_spectrum:
            if not len(values) or values.max() <= 0:
                continue
            values = np.sort(values)[::-1] / values.max()
        rows += [{"trial_id": trial_id, "index": index, "value": value} for index, value in enumerate(values, 1)]
    frame = pd.DataFrame(rows, columns=["trial_id", "index", "value"])
    title = f"{each.entry} / largest" if is_spectrum else each.entry
    axes = Axes("index", "value", "Index", title, x_log=False, y_log=each.axis == "log")
    plot = lines_plot(data, frame, axes, line_groups(data, data.x_name))
    return None if plot is None else replace(plot, title=f"{each.label}, last layer")


def _lead(data: ReportData) -> str:
    drawn = [vector for vector in _vectors(data) if vector.name in data.lists]
    said = [
        f"{each.label}: {each.doc or each.name}{', over the largest' * (each.panel == 'spectrum')}." for each in drawn
    ]
    return escape(" ".join(["At the last step and layer.", *said]))


VECTORS = ReportSection(SECTION, vector_plots, _lead, "No vectors or matrices yet.")
