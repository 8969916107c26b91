"""The geometry of the class means: their singular values, and how the classes lie to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.data import ReportData, grouped, spread
from depthrate.orchestrator.report.plotting import Axes, Plot, make_layout
from depthrate.orchestrator.report.words import signed_text, value_text

MAX_MAPS = 4
DIVERGING = [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]]
"""ColorBrewer's RdBu from -1 (blue) to 1 (red)."""


def spectrum_frame(data: ReportData) -> pd.DataFrame:
    """Return trial_id, index, share: each singular value of the last layer's class means over the largest."""
    rows: list[dict[str, Any]] = []
    for trial_id, values in _arrays(data, "singular_values"):
        if len(values) and values.max() > 0:
            shares = np.sort(values)[::-1] / values.max()
            rows += [{"trial_id": trial_id, "index": i, "share": share} for i, share in enumerate(shares, 1)]
    return pd.DataFrame(rows, columns=["trial_id", "index", "share"])


def gram_plots(data: ReportData) -> list[Plot]:
    """Draw the cosines between the class means of the last layer, averaged over the trials of one x."""
    cosines = dict(_cosines(data))
    if not cosines:
        return []
    by = [data.x_name] if data.x_name in data.trials else []
    groups = grouped(data.trials, pd.DataFrame({"trial_id": list(cosines)}), by)
    plots = []
    for key, part in spread(groups, MAX_MAPS):
        maps = [cosines[trial_id] for trial_id in part["trial_id"]]
        maps = [one for one in maps if one.shape == maps[0].shape]
        name = ", ".join(f"{parameter} = {value_text(value)}" for parameter, value in zip(by, key, strict=True))
        plots.append(_heat_map(np.mean(maps, axis=0), name, len(maps)))
    return plots


def _heat_map(cosine_KK: np.ndarray, name: str, num_trials: int) -> Plot:
    num_classes = len(cosine_KK)
    labels = list(range(num_classes))
    trace = {"type": "heatmap", "x": labels, "y": labels, "z": np.round(cosine_KK, 4).tolist(), "zmin": -1, "zmax": 1}
    trace |= {"colorscale": DIVERGING, "showlegend": False, "name": "", "hoverongaps": False}
    trace |= {"colorbar": {"thickness": 12, "title": {"text": "cosine", "side": "right"}}, "xgap": 1, "ygap": 1}
    layout = make_layout(Axes("x", "y", "Other class", "Class", x_log=False, y_log=False), [], 1)
    axis = {"showgrid": False, "constrain": "domain", "dtick": 1 if num_classes <= 12 else None}
    layout["xaxis"] |= axis
    layout["yaxis"] |= axis | {"autorange": "reversed", "scaleanchor": "x"}
    title = "Cosines between class means" + (f", {name}" if name else "")
    off = cosine_KK[~np.eye(num_classes, dtype=bool)]
    notes = [f"Last layer, mean of {num_trials} {'trial' if num_trials == 1 else 'trials'}."]
    if num_classes > 1:
        mean, simplex = (signed_text(value, ".3f") for value in (off.mean(), -1 / (num_classes - 1)))
        notes.append(f"Off the diagonal {mean} ± {off.std():.3f}; a simplex has {simplex} everywhere.")
    return Plot(title, [trace], layout, 1, notes)


def _cosines(data: ReportData) -> list[tuple[str, np.ndarray]]:
    """Cosines of the centred class means, from their Gram matrix."""
    found = []
    for trial_id, flat in _arrays(data, "class_gram"):
        num_classes = round(len(flat) ** 0.5)
        if num_classes < 2 or num_classes**2 != len(flat):
            continue
        centring = np.eye(num_classes) - 1 / num_classes
        gram_KK = centring @ flat.reshape(num_classes, num_classes) @ centring
        norms = np.sqrt(np.maximum(np.diag(gram_KK), 0))
        if norms.min() > 0:
            found.append((trial_id, gram_KK / np.outer(norms, norms)))
    return found


def _arrays(data: ReportData, column: str) -> list[tuple[str, np.ndarray]]:
    """Return (trial_id, values) of the trials whose values are all there and finite."""
    if column not in data.geometry:
        return []
    pairs = [
        (str(trial_id), np.asarray(values, dtype=np.float64))
        for trial_id, values in zip(data.geometry["trial_id"], data.geometry[column], strict=True)
        if isinstance(values, list | np.ndarray)  # missing ones are null of whatever kind pandas chose
    ]
    known = set(data.trials["trial_id"])
    return [(trial_id, values) for trial_id, values in pairs if np.isfinite(values).all() and trial_id in known]
