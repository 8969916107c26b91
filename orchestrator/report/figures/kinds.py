"""Kinds of figures that both tasks and sweeps request: shares, vectors by entry and heat maps."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import Group, facet_groups, facets_of, mean_array, unique
from depthrate.orchestrator.report.figure import (
    Axis,
    Facet,
    Figure,
    HeatMap,
    Mark,
    Range,
    is_log,
    map_facet,
    mean_line,
    numbers,
    trial_dots,
    value_axis,
    with_common_colours,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.tasks.fits.proportions import wilson_interval

MAX_ENTRIES = 120
"""Maximum number of entries of a vector that are shown."""


def share_figure(
    data: ReportData, rows: pd.DataFrame, by: Sequence[str], title: str, x: str, label: str, x_scale: str = ""
) -> Figure:
    """Plot the share over all observations at each x, with Wilson intervals.

    Args:
        rows: Columns trial_id, x, share and weight (number of the trial's observations).
        by: Parameters that separate groups.
        x: Name of x.
        label: Name of the share.
        x_scale: log, linear, or empty: according to the values.
    """
    has_dots = bool((rows["weight"] > 1).any())

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        part, name, colour = group.content, group.name, group.colour
        x, shares, ends = [], [], []
        for place, at_x in part.groupby("x"):
            total = float(at_x["weight"].sum())
            count = min(total, float((at_x["share"] * at_x["weight"]).sum()))
            x.append(place)
            shares.append(count / total)
            ends.append(wilson_interval(count, total))
        low, high = zip(*ends, strict=True)
        bars = Range(x=numbers(x), low=low, high=high, colour=colour, name=name, is_bars=True)
        dots = [trial_dots(part["x"], part["share"], name, colour)] if has_dots else []
        return [*dots, bars, mean_line(x, shares, name, colour)]

    groups, omissions = facet_groups(data.trials, rows, by)
    x_axis = value_axis(x, rows["x"], is_log=is_log(x_scale, rows["x"]))
    notes = ["At the last step. Bars: 95 % Wilson intervals over the observations of all trials."]
    return Figure(title, facets_of(groups, x_axis, Axis(title=label, ends=(-0.03, 1.03)), marks), [*notes, *omissions])


def vector_marks(vectors: Sequence[np.ndarray], name: str, colour: str, *, is_log: bool, dash: str = "") -> list[Mark]:
    """Return the mean of vectors by entry, and their range as a band if they are several.

    Args:
        is_log: Whether the axis of the values is logarithmic.
        dash: Dash style of the mean. With one, the line is not named and has no band.
    """
    mean = mean_array(list(vectors))
    places = unique(int(place) for place in np.geomspace(1, len(mean), MAX_ENTRIES).round())
    x = [float(place) for place in places]

    def at_places(values: np.ndarray) -> list[float]:
        return [float(v) if v > 0 or not is_log else float("nan") for v in (values[place - 1] for place in places)]

    line = mean_line(x, at_places(mean), name, colour, symbol="", dash=dash, is_named=bool(name) and not dash)
    if dash or len(vectors) == 1:
        return [line]
    same = np.array([vector for vector in vectors if vector.shape == mean.shape])
    ends = at_places(same.min(axis=0)), at_places(same.max(axis=0))
    return [Range(x=x, low=ends[0], high=ends[1], colour=colour, name=name), line]


def map_figure(
    title: str,
    parts: Sequence[tuple[str, pd.DataFrame]],
    columns: tuple[str, str, str],
    titles: tuple[str, str],
    label: str,
    *,
    is_log: bool = False,
) -> Figure:
    """Plot the mean of a column over two others, with one facet per (title, rows). The largest y is on top.

    Args:
        columns: Names of x, y and the value.
        titles: Titles of x and y.
        label: Name of the values.
        is_log: Whether to show logarithms to base ten, if all means are positive.
    """
    x, y, value = columns

    def facet(name: str, rows: pd.DataFrame) -> Facet:
        grid = rows.pivot_table(index=y, columns=x, values=value, aggfunc="mean").sort_index(ascending=False)
        has_logs = is_log and bool((grid > 0).all().all())
        values = np.log10(grid.to_numpy()) if has_logs else grid.to_numpy()
        names = ([f"{place:g}" for place in places] for places in (grid.columns, grid.index))
        finite, name_of_values = values[np.isfinite(values)], f"log₁₀ {label}" if has_logs else label
        heat = HeatMap(values=values, label=name_of_values, low=float(finite.min()), high=float(finite.max()))
        return map_facet(heat, *titles, *names, title=name)

    facets = [facet(name, rows) for name, rows in parts]
    counts = [rows.groupby([y, x])["trial_id"].nunique() for _, rows in parts]
    few, many = min(int(count.min()) for count in counts), max(int(count.max()) for count in counts)
    note = f"Mean of {'' if few == many else f'{few} to '}{counted(many, 'trial')} per cell."
    return Figure(title, with_common_colours(facets), [note], has_common_axes=False)
