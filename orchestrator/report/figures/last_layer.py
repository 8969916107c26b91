"""Plot the vectors and matrices of the last layer: spectra divided by their largest entry, and Gram matrices as cosines."""

from collections.abc import Sequence
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
from depthrate.orchestrator.report.figure import Axis, Facet, Figure, HeatMap, map_facet, with_common_colours
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape, signed_text
from depthrate.tasks.metric import Metric

MAX_MAPS = 4
MAX_CLASS_NAMES = 12
"""Maximum number of rows of a matrix of which each has a tick."""


def vector_plots(data: ReportData) -> list[Figure]:
    """Plot each vector by entry, averaged over the trials of a group."""
    figures = [_vector_plot(data, vector) for vector in _vectors(data)]
    return [figure for figure in figures if figure is not None]


def _vectors(data: ReportData) -> list[Metric]:
    return data.panel_metrics("layer", ("always", "spectrum"), kind="vector")


def _vector_plot(data: ReportData, metric: Metric) -> Figure | None:
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
    axes = Axis(title="Index"), Axis(title=title, is_log=metric.axis == "log")
    figure = lines_plot(data, frame, ("index", "value"), axes, line_groups(data, data.x_name))
    return None if figure is None else replace(figure, title=f"{metric.label}, last layer")


def matrix_plots(data: ReportData) -> list[Figure]:
    """Plot each square matrix, averaged over the trials of one x."""
    figures = [_maps(data, metric) for metric in _matrices(data)]
    return [figure for figure in figures if figure is not None]


def _matrices(data: ReportData) -> list[Metric]:
    return data.panel_metrics("layer", ("always", "cosines"), kind="matrix")


def _maps(data: ReportData, metric: Metric) -> Figure | None:
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
        return None
    by = [data.x_name] if data.x_name in data.trials else []
    groups = group_trials(data.trials, pd.DataFrame({"trial_id": list(matrices)}), by)
    shown = spread(groups, MAX_MAPS)
    drawn, present = {key for key, _ in shown}, {key for key, _ in groups}
    others = (
        [key for key, _ in group_trials(data.trials, pd.DataFrame({"trial_id": undefined}), by)] if undefined else []
    )
    facets, notes = [], ["Last layer."]
    for key, part in shown:
        maps = [matrices[trial_id] for trial_id in part["trial_id"]]
        maps = [matrix for matrix in maps if matrix.shape == maps[0].shape]
        title, mean_KK = setting_text(by, key), np.mean(maps, axis=0)
        facets.append(matrix_facet(mean_KK, title, metric.entry, is_cosine=metric.panel == "cosines"))
        has_simplex = metric.has_simplex is not None and metric.has_simplex(data.params_of(part["trial_id"]))
        prefix = f"{title[:1].upper()}{title[1:]}: mean" if title else "Mean"
        notes.append(f"{prefix} of {counted(len(maps), 'trial')}{_cosine_text(metric, mean_KK, has_simplex)}.")
    notes += _groups_note("Not shown", by, [key for key in present if key not in drawn])
    without_map = [key for key in others if key not in present]
    notes += _groups_note("No figure, since a vector is zero and has no direction", by, without_map)
    return Figure(metric.label, with_common_colours(facets), notes, has_common_axes=False)


def matrix_facet(
    values_KK: np.ndarray,
    title: str,
    entry: str,
    *,
    is_cosine: bool = False,
    names: Sequence[str] = (),
    is_diverging: bool = True,
) -> Facet:
    """Return the heat map of a square matrix.

    Args:
        entry: Name of a row.
        is_cosine: Whether the values are cosines, with colours from -1 to 1.
        names: Names of the rows and columns. Default: their numbers, if they are few.
        is_diverging: Whether zero has the middle colour.
    """
    size = len(values_KK)
    largest = 1.0 if is_cosine else float(np.abs(values_KK).max()) or 1.0
    low = -largest if is_diverging else min(0.0, float(values_KK.min()))
    heat = HeatMap(
        values=np.round(values_KK, 4) if is_cosine else values_KK,
        label="cosine" if is_cosine else "",
        low=low,
        high=largest if is_diverging else float(values_KK.max()),
        is_diverging=is_diverging,
        has_numbers=not is_diverging,
    )
    stride = 1 if size <= MAX_CLASS_NAMES else size // 5
    names = names or [str(index) if index % stride == 0 else "" for index in range(size)]
    x_title, y_title = (f"Other {entry.lower()}", entry) if is_cosine else (entry, entry)
    return map_facet(heat, x_title, y_title, names, names, title=title, is_square=True)


def _cosine_text(metric: Metric, mean_KK: np.ndarray, has_simplex: bool) -> str:
    """Compare the cosines with those of a simplex."""
    size = len(mean_KK)
    if metric.panel != "cosines" or size == 1:
        return ""
    off = mean_KK[~np.eye(size, dtype=bool)]
    mean, simplex = (signed_text(value, ".3f") for value in (off.mean(), -1 / (size - 1)))
    reference = f" (a simplex has {simplex})" if has_simplex else ""
    return f", off-diagonal mean {mean} ± {off.std():.3f}{reference}"


def _groups_note(title: str, by: list[str], keys: list[tuple[str, ...]]) -> list[str]:
    names = [setting_text(by, key) for key in sorted(keys, key=sort_key)]
    return [f"{title}: {'; '.join(names)}."] if names else []


def _cosines(gram_KK: np.ndarray) -> np.ndarray | None:
    """Return the cosines between centred vectors from their Gram matrix, or None if a vector is zero."""
    centring = np.eye(len(gram_KK)) - 1 / len(gram_KK)
    gram_KK = centring @ gram_KK @ centring
    norms = np.sqrt(np.maximum(np.diag(gram_KK), 0))
    return gram_KK / np.outer(norms, norms) if len(gram_KK) > 1 and norms.min() > 0 else None


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
