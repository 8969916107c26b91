"""Plot the vectors of the last layer: spectra divided by their largest entry, other vectors unchanged."""

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
    """Plot each vector by entry, averaged over the trials of a group."""
    plots = [_vector_plot(data, vector) for vector in _vectors(data)]
    return [plot for plot in plots if plot is not None]


def _vectors(data: ReportData) -> list[Metric]:
    return data.panel_metrics("layer", ("always", "spectrum"), kind="vector")


def _vector_plot(data: ReportData, metric: Metric) -> Plot | None:
    is_spectrum = metric.panel == "spectrum"
    rows: list[dict[str, Any]] = []
    for trial_id, values in finite_arrays(data.trials, data.lists, metric.name):
        if is_spectrum:
            if not len(values) or values.max() <= 0:
                continue
            values = np.sort(values)[::-1] / values.max()
        rows += [{"trial_id": trial_id, "index": index, "value": value} for index, value in enumerate(values, 1)]
    frame = pd.DataFrame(rows, columns=["trial_id", "index", "value"])
    title = f"{metric.entry} / largest" if is_spectrum else metric.entry
    axes = Axes("index", "value", "Index", title, x_log=False, y_log=metric.axis == "log")
    plot = lines_plot(data, frame, axes, line_groups(data, data.x_name))
    return None if plot is None else replace(plot, title=f"{metric.label}, last layer")


def _lead(data: ReportData) -> str:
    texts = [
        f"{vector.label}: {vector.doc or vector.name}{', over the largest' * (vector.panel == 'spectrum')}."
        for vector in _vectors(data)
        if vector.name in data.lists
    ]
    return escape(" ".join(["At the last step and layer.", *texts]))


VECTORS = ReportSection(SECTION, vector_plots, _lead, "No vectors or matrices yet.")
