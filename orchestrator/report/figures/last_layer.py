"""Plot the vectors and matrices of the last layer: spectra divided by their largest entry, and Gram matrices as cosines."""

from dataclasses import replace

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import (
    finite_arrays,
    group_trials,
    setting_text,
    sort_key,
    spread,
)
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.plot import Axes, Plot, heat_map, make_layout
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape, signed_text
from depthrate.tasks.metric import Metric

MAX_MAPS = 4
DIVERGING = [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]]
"""ColorBrewer's RdBu: blue below zero, red above."""


def vector_plots(data: ReportData) -> list[Plot]:
    """Plot each vector by entry, averaged over the trials of a group."""
    plots = [_vector_plot(data, vector) for vector in _vectors(data)]
    return [plot for plot in plots if plot is not None]


def _vectors(data: ReportData) -> list[Metric]:
    return data.panel_metrics("layer", ("always", "spectrum"), kind="vector")


def _vector_plot(data: ReportData, metric: Metric) -> Plot | None:
    is_spectrum = metric.panel == "spectrum"
    vectors = finite_arrays(data.trials, data.lists, metric.name)
    if is_spectrum:
        positive = [(trial_id, values) for trial_id, values in vectors if len(values) and values.max() > 0]
        vectors = [(trial_id, np.sort(values)[::-1] / values.max()) for trial_id, values in positive]
    if not vectors:
        return None
    trial_ids = pd.Index([trial_id for trial_id, _ in vectors]).repeat([len(values) for _, values in vectors])
    indices = np.concatenate([np.arange(1, len(values) + 1) for _, values in vectors])
    frame = pd.DataFrame({"trial_id": trial_ids, "index": indices, "value": np.concatenate([v for _, v in vectors])})
    title = f"{metric.entry} / largest" if is_spectrum else metric.entry
    axes = Axes("index", "value", "Index", title, x_log=False, y_log=metric.axis == "log")
    plot = lines_plot(data, frame, axes, line_groups(data, data.x_name))
    return None if plot is None else replace(plot, title=f"{metric.label}, last layer")


def matrix_plots(data: ReportData) -> list[Plot]:
    """Plot each square matrix, averaged over the trials of one x."""
    return [plot for metric in _matrices(data) for plot in _maps(data, metric)]


def _matrices(data: ReportData) -> list[Metric]:
    return data.panel_metrics("layer", ("always", "cosines"), kind="matrix")


def _maps(data: ReportData, metric: Metric) -> list[Plot]:
    matrices, undefined = {}, []
    for trial_id, flat in finite_arrays(data.trials, data.lists, metric.name):
        size = round(len(flat) ** 0.5)
        matrix = flat.reshape(size, size) if size**2 == len(flat) and size else None
        matrix = _cosines(matrix) if matrix is not None and metric.panel == "cosines" else matrix
        if matrix is not None:
            matrices[trial_id] = matrix
        else:
            undefined.append(trial_id)
    if not matrices:
        return []
    by = [data.x_name] if data.x_name in data.trials else []
    groups = group_trials(data.trials, pd.DataFrame({"trial_id": list(matrices)}), by)
    shown = spread(groups, MAX_MAPS)
    drawn, present = {key for key, _ in shown}, {key for key, _ in groups}
    others = (
        [key for key, _ in group_trials(data.trials, pd.DataFrame({"trial_id": undefined}), by)] if undefined else []
    )
    plots = []
    for key, part in shown:
        maps = [matrices[trial_id] for trial_id in part["trial_id"]]
        maps = [matrix for matrix in maps if matrix.shape == maps[0].shape]
        has_simplex = metric.has_simplex is not None and metric.has_simplex(data.params_of(part["trial_id"]))
        plots.append(_matrix_plot(metric, np.mean(maps, axis=0), setting_text(by, key), len(maps), has_simplex))
    plots[-1].notes.extend(_groups_note("Not shown", by, [key for key in present if key not in drawn]))
    without_map = [key for key in others if key not in present]
    plots[-1].notes.extend(_groups_note("No figure, since a vector is zero and has no direction", by, without_map))
    return plots


def _groups_note(title: str, by: list[str], keys: list[tuple[str, ...]]) -> list[str]:
    names = [setting_text(by, key) for key in sorted(keys, key=sort_key)]
    return [f"{title}: {'; '.join(names)}."] if names else []


def _cosines(gram_KK: np.ndarray) -> np.ndarray | None:
    """Return the cosines between centred vectors from their Gram matrix, or None if a vector is zero."""
    centring = np.eye(len(gram_KK)) - 1 / len(gram_KK)
    gram_KK = centring @ gram_KK @ centring
    norms = np.sqrt(np.maximum(np.diag(gram_KK), 0))
    return gram_KK / np.outer(norms, norms) if len(gram_KK) > 1 and norms.min() > 0 else None


def _matrix_plot(metric: Metric, mean_KK: np.ndarray, name: str, num_trials: int, has_simplex: bool) -> Plot:
    is_cosine, size = metric.panel == "cosines", len(mean_KK)
    largest = 1 if is_cosine else float(np.abs(mean_KK).max()) or 1.0
    trace = heat_map(
        np.round(mean_KK, 4) if is_cosine else mean_KK,
        "cosine" if is_cosine else metric.entry,
        -largest,
        high=largest,
        colours=DIVERGING,
        tick_format=".1f" if is_cosine else "",
        digits=17,
        has_numbers=False,
    )
    x_title, y_title = (f"Other {metric.entry.lower()}", metric.entry) if is_cosine else ("Column", "Row")
    layout = make_layout(Axes("x", "y", x_title, y_title, x_log=False, y_log=False), [])
    axis = {"showgrid": False, "constrain": "domain", "dtick": 1 if size <= 12 else None}
    layout["xaxis"] |= axis
    layout["yaxis"] |= axis | {"autorange": "reversed", "scaleanchor": "x"}
    notes = [f"Last layer, mean of {counted(num_trials, 'trial')}."]
    if is_cosine and size > 1:
        off = mean_KK[~np.eye(size, dtype=bool)]
        mean, simplex = (signed_text(value, ".3f") for value in (off.mean(), -1 / (size - 1)))
        reference = f" A simplex has {simplex}." if has_simplex else ""
        notes.append(f"Off-diagonal mean {mean} ± {off.std():.3f}.{reference}")
    return Plot(metric.label + (f", {name}" if name else ""), [trace], layout, notes)


def _lead(data: ReportData) -> str:
    texts = ["At the last step and layer."]
    for metric in (*_vectors(data), *_matrices(data)):
        if metric.name in data.lists:
            scale = ", over the largest" if metric.panel == "spectrum" else ""
            texts.append(f"{metric.label}: {metric.doc or metric.name}{scale}.")
    return escape(" ".join(texts))


SECTION = ReportSection(
    70,
    "Vectors and matrices of the last layer",
    lambda data: vector_plots(data) + matrix_plots(data),
    _lead,
    "No vectors or matrices yet.",
)
