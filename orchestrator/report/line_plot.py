"""Plot lines by step, layer or index: a strong mean per group and light lines for trials."""

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import (
    group_trials,
    setting_text,
    spread,
    thin_indices,
    unique,
)
from depthrate.orchestrator.report.plot import (
    DASHES,
    MAX_GROUPS,
    MAX_POINTS,
    Axes,
    Plot,
    Trace,
    legend_entry,
    make_layout,
    make_trace,
    omission_notes,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import escape_for_plotly

MAX_LINES = 100
"""Maximum number of trials in one figure. Each line has at most MAX_POINTS / MAX_LINES points."""


def line_groups(data: ReportData, first: str) -> list[str]:
    """Return the parameters that separate lines: `first`, for the colours, then the groups of the fits.

    If both are empty, return all settings.
    """
    return [name for name in unique([first, *data.group_names]) if name in data.trials] or data.settings


def lines_plot(data: ReportData, frame: pd.DataFrame, axes: Axes, by: list[str]) -> Plot | None:
    """Draw one colour per value of the first name in `by`, and one dash style per value of the remaining names."""
    if axes.y not in frame:
        return None
    x, y = frame[axes.x], pd.to_numeric(frame[axes.y], errors="coerce")
    is_measured = x.notna() & y.notna() & ((x >= 1) if axes.x_log else True)  # a log axis cannot show 0
    is_drawable = is_measured & np.isfinite(y) & ((y > 0) | (not axes.y_log))
    # copying all columns would take as long as drawing the figure
    drawable = frame[unique(["trial_id", axes.x, axes.y])].assign(**{axes.y: y})[is_drawable]
    if drawable.empty:
        return None
    finished = data.trials.loc[data.trials["state"] == "ok", "trial_id"]
    groups = group_trials(data.trials, drawable.assign(is_finished=drawable["trial_id"].isin(finished)), by)
    firsts = spread(unique(key[:1] for key, _ in groups), MAX_GROUPS)
    rests = spread(unique(key[1:] for key, _ in groups), len(DASHES))
    drawn = [(key, part) for key, part in groups if key[:1] in firsts and key[1:] in rests]
    colours = dict(zip(firsts, viridis(len(firsts)), strict=True))
    dashes = dict(zip(rests, DASHES, strict=False))
    traces: list[Trace] = []
    for key, part in drawn:
        group = f"g{firsts.index(key[:1])}"
        line = {"color": colours[key[:1]], "dash": dashes[key[1:]]}
        light, strong = _trial_line(part, axes, MAX_LINES // len(drawn)), _mean_line(part, axes)
        traces.append(make_trace(*light, group, line=line | {"width": 1}, opacity=0.3))
        mode = "lines" if axes.x_log else "lines+markers"
        text = escape_for_plotly(setting_text(by, key))
        hover = {"hovertext": text, "hoverinfo": "x+y+text"}
        traces.append(make_trace(*strong, group, mode=mode, line=line | {"width": 2}, marker={"size": 5}) | hover)
    keys = _line_keys(by, colours, dashes)
    layout = make_layout(axes, drawable[axes.y], legend=by[:1])
    # short names of colours are in one row, and long names of dashes below it
    layout["legend"]["traceorder"] = "grouped"
    notes = omission_notes(len(drawn), len(groups), int(is_measured.sum()) - len(drawable), log=axes.y_log)
    return Plot(axes.y_title, traces + keys, layout, notes)


def _line_keys(by: list[str], colours: dict[tuple[str, ...], str], dashes: dict[tuple[str, ...], str]) -> list[Trace]:
    """Return legend entries for the colours, then for the dashes."""
    keys = []
    for index, (key, colour) in enumerate(colours.items()):
        names = [escape_for_plotly(value) for value in key]
        keys += [legend_entry(name, f"g{index}", color=colour) for name in names]
    if len(dashes) > 1:
        for key, dash in dashes.items():
            keys.append(legend_entry(escape_for_plotly(setting_text(by[1:], key)), "dashes", dash=dash))
    return keys


def _trial_line(part: pd.DataFrame, axes: Axes, num_trials: int) -> tuple[list[Any], list[Any]]:
    """Return at most `num_trials` trials of a group as one line with gaps."""
    selected = spread(list(part["trial_id"].unique()), num_trials)
    ordered = part.loc[part["trial_id"].isin(selected), ["trial_id", axes.x, axes.y]].sort_values(axes.x, kind="stable")
    all_x, all_y, trial_ids = (ordered[name].to_numpy() for name in (axes.x, axes.y, "trial_id"))
    x: list[Any] = []
    y: list[Any] = []
    for trial_id in selected:
        rows = np.flatnonzero(trial_ids == trial_id)
        thin = rows[thin_indices(len(rows), MAX_POINTS // MAX_LINES)]
        x += [*all_x[thin], None]
        y += [*all_y[thin], None]
    return x, y


def _mean_line(part: pd.DataFrame, axes: Axes) -> tuple[Any, Any]:
    """Return the mean over finished trials (over all if none finished), geometric on a log axis."""
    # a trial that stops early would bend the mean
    averaged = part[part["is_finished"]] if part["is_finished"].any() else part
    values = np.log(averaged[axes.y]) if axes.y_log else averaged[axes.y]
    mean = values.groupby(averaged[axes.x]).mean()
    mean = mean.iloc[thin_indices(len(mean), MAX_POINTS // MAX_LINES)]
    return mean.index, np.exp(mean) if axes.y_log else mean
