"""The matrices measured at the last layer: of a Gram matrix the cosines between its vectors, others as they are."""

from __future__ import annotations

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import (
    SWEEP_COLUMN,
    finite_arrays,
    grouped,
    key_parts,
    sort_key,
    spread_alike,
)
from depthrate.orchestrator.report.figures.vectors import SECTION
from depthrate.orchestrator.report.plot import Axes, Plot, make_layout
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.section import ReportSection
from depthrate.orchestrator.report.text import escape, escape_for_plotly, signed_text
from depthrate.tasks.metric import Metric

MAX_MAPS = 4
DIVERGING = [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]]
"""ColorBrewer's RdBu, blue below zero and red above."""


def matrix_plots(data: ReportData) -> list[Plot]:
    """Draw each square matrix, averaged over the trials of one x."""
    return [plot for each in _matrices(data) for plot in _maps(data, each)]


def _matrices(data: ReportData) -> list[Metric]:
    return data.drawn("layer", ("always", "cosines"), kind="matrix")


def _maps(data: ReportData, each: Metric) -> list[Plot]:
    found, undefined = {}, []
    for trial_id, flat in finite_arrays(data.trials, data.lists, each.name):
        size = round(len(flat) ** 0.5)
        matrix = flat.reshape(size, size) if size**2 == len(flat) and size else None
        matrix = _cosines(matrix) if matrix is not None and each.panel == "cosines" else matrix
        if matrix is not None:
            found[trial_id] = matrix
        else:
            undefined.append(trial_id)
    if not found:
        return []
    by = [name for name in ([SWEEP_COLUMN] if data.parts else []) + [data.x_name] if name in data.trials]
    groups = grouped(data.trials, pd.DataFrame({"trial_id": list(found)}), by)
    shown = spread_alike(groups, MAX_MAPS, lambda group: key_parts(by, group[0]))
    drawn, present = {key for key, _ in shown}, {key for key, _ in groups}
    others = [key for key, _ in grouped(data.trials, pd.DataFrame({"trial_id": undefined}), by)] if undefined else []
    plots = []
    for key, part in shown:
        maps = [found[trial_id] for trial_id in part["trial_id"]]
        maps = [one for one in maps if one.shape == maps[0].shape]
        plots.append(_heat_map(each, np.mean(maps, axis=0), _name(by, key), len(maps)))
    plots[-1].notes.extend(_left_out_notes(by, [key for key in present if key not in drawn], "not drawn"))
    lost = [key for key in others if key not in present]
    plots[-1].notes.extend(
        _left_out_notes(by, lost, "without a picture: a vector of it is zero, which has no direction")
    )
    return plots


def _left_out_notes(by: list[str], keys: list[tuple[str, ...]], why: str) -> list[str]:
    if not keys:
        return []
    names = [_name(by, key) for key in sorted(keys, key=sort_key)]
    return [f"{'; '.join(names)} {'is' if len(names) == 1 else 'are'} {why}."]


def _name(by: list[str], key: tuple[str, ...]) -> str:
    return ", ".join(f"{parameter} = {value}" for parameter, value in zip(by, key, strict=True))


def _cosines(gram_KK: np.ndarray) -> np.ndarray | None:
    """Return the cosines between vectors once their mean is taken away, from their Gram matrix."""
    centring = np.eye(len(gram_KK)) - 1 / len(gram_KK)
    gram_KK = centring @ gram_KK @ centring
    norms = np.sqrt(np.maximum(np.diag(gram_KK), 0))
    return gram_KK / np.outer(norms, norms) if len(gram_KK) > 1 and norms.min() > 0 else None


def _heat_map(each: Metric, mean_KK: np.ndarray, name: str, num_trials: int) -> Plot:
    is_cosine, size = each.panel == "cosines", len(mean_KK)
    labels, largest = list(range(size)), 1 if is_cosine else float(np.abs(mean_KK).max()) or 1.0
    values = np.round(mean_KK, 4) if is_cosine else mean_KK
    trace = {"type": "heatmap", "x": labels, "y": labels, "z": values.tolist(), "zmin": -largest, "zmax": largest}
    trace |= {"colorscale": DIVERGING, "showlegend": False, "name": "", "hoverongaps": False}
    colours = {
        "thickness": 12,
        "tickformat": ".1f" if is_cosine else "",
        "title": {"text": "cosine" if is_cosine else escape_for_plotly(each.entry), "side": "right"},
    }
    trace |= {"colorbar": colours, "xgap": 1, "ygap": 1}
    x_title, y_title = (f"Other {each.entry.lower()}", each.entry) if is_cosine else ("Column", "Row")
    layout = make_layout(Axes("x", "y", x_title, y_title, x_log=False, y_log=False), [])
    axis = {"showgrid": False, "constrain": "domain", "dtick": 1 if size <= 12 else None}
    layout["xaxis"] |= axis
    layout["yaxis"] |= axis | {"autorange": "reversed", "scaleanchor": "x"}
    notes = [f"Last layer, mean of {num_trials} {'trial' if num_trials == 1 else 'trials'}."]
    if is_cosine and size > 1:
        off = mean_KK[~np.eye(size, dtype=bool)]
        mean, simplex = (signed_text(value, ".3f") for value in (off.mean(), -1 / (size - 1)))
        notes.append(f"Off the diagonal {mean} ± {off.std():.3f}; a simplex has {simplex} everywhere.")
    return Plot(each.label + (f", {name}" if name else ""), [trace], layout, notes)


def _lead(data: ReportData) -> str:
    return escape(" ".join(f"{m.label}: {m.doc or m.name}." for m in _matrices(data) if m.name in data.lists))


MATRICES = ReportSection(SECTION, matrix_plots, _lead)
