"""Plot lines by step, layer or index: the mean of each group, with the range of its trials as a band."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import facet_groups, thin_indices, unique
from depthrate.orchestrator.report.figure import Axis, Facet, Figure, Mark, Range, Series, omission_notes
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.sheet.names import shorten

MAX_LINE_POINTS = 60
"""Maximum number of points of a line."""


def line_groups(data: ReportData, first: str) -> list[str]:
    """Return the parameters that separate lines: `first`, then the groups of the fits.

    If both are empty, return all settings.
    """
    return [name for name in unique([first, *data.group_names]) if name in data.trials] or data.settings


def lines_plot(
    data: ReportData, frame: pd.DataFrame, columns: tuple[str, str], axes: tuple[Axis, Axis], by: Sequence[str]
) -> Figure | None:
    """Draw the lines of a column over another one, one per group.

    Args:
        columns: Names of x and y in `frame`.
        axes: Axes of x and y.
        by: Parameters that separate groups.
    """
    (x_name, y_name), (x_axis, y_axis) = columns, axes
    if y_name not in frame:
        return None
    x, y = frame[x_name], pd.to_numeric(frame[y_name], errors="coerce")
    is_measured = x.notna() & y.notna() & ((x >= 1) if x_axis.is_log else True)  # a log axis cannot show 0
    is_drawable = is_measured & np.isfinite(y) & ((y > 0) | (not y_axis.is_log))
    # copying all columns would take as long as drawing the figure
    drawable = frame[unique(["trial_id", x_name, y_name])].assign(**{y_name: y})[is_drawable]
    if drawable[x_name].nunique() < 2:
        return None
    finished = data.trials.loc[data.trials["state"] == "ok", "trial_id"]
    drawable = drawable.assign(is_finished=drawable["trial_id"].isin(finished))
    groups, omissions = facet_groups(data.trials, drawable, by, "groups")
    facets = []
    for title, lines in groups:
        bands, means = list[Mark](), list[Mark]()
        for line in lines:
            spread = _spread(line.content, x_name, y_name, is_log=y_axis.is_log)
            at: dict[str, Any] = {"x": spread.index.tolist(), "colour": line.colour, "name": line.name}
            if line.content["trial_id"].nunique() > 1:
                bands.append(Range(low=spread["low"].tolist(), high=spread["high"].tolist(), **at))
            means.append(Series(y=spread["mean"].tolist(), is_named=bool(line.name), width=1.8, **at))
        facets.append(Facet(title=title, x=x_axis, y=y_axis, marks=[*bands, *means]))
    num_dropped = int(is_measured.sum()) - len(drawable)
    notes = [*omissions, *omission_notes(0, 0, num_dropped, log=y_axis.is_log)]
    return Figure(shorten(y_axis.title), facets, notes)


def _spread(part: pd.DataFrame, x: str, y: str, *, is_log: bool) -> pd.DataFrame:
    """Return the range, and the mean over finished trials (over all if none finished), geometric on a log axis."""
    # a trial that stops early would bend the mean
    averaged = part[part["is_finished"]] if part["is_finished"].any() else part
    values = np.log(averaged[y]) if is_log else averaged[y]
    mean = values.groupby(averaged[x]).mean()
    ends = part.groupby(x)[y].agg(["min", "max"]).loc[mean.index]
    table = {"mean": np.exp(mean) if is_log else mean, "low": ends["min"], "high": ends["max"]}
    return pd.DataFrame(table).iloc[thin_indices(len(mean), MAX_LINE_POINTS)]
