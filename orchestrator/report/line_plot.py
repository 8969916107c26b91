"""A figure of lines: the mean of each group strong, single trials light; by step, by layer or by index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import (
    group_trials,
    key_parts,
    spread,
    spread_alike,
    thin_indices,
    unique,
)
from depthrate.orchestrator.report.plot import (
    DASHES,
    GREY,
    MAX_GROUPS,
    MAX_POINTS,
    Axes,
    Plot,
    Trace,
    make_layout,
    make_trace,
    omission_notes,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import escape_for_plotly

MAX_LINES = 100
"""Single trials drawn in one figure; each line may have MAX_POINTS / MAX_LINES points."""


def line_groups(data: ReportData, first: str) -> list[str]:
    """Return the parameters that part the trials into lines: one that gives the colours, then those of the fits.

    Without any of them, where nothing is fitted, those that differ between the settings.
    """
    return [name for name in unique([first, *data.group_names]) if name in data.trials] or data.settings


def lines_plot(data: ReportData, frame: pd.DataFrame, axes: Axes, by: list[str]) -> Plot | None:
    """One colour per value of the first name in `by`, one dash per value of the rest: means strong, trials light."""
    if axes.y not in frame:
        return None
    frame = frame[unique(["trial_id", axes.x, axes.y])]  # each copy of all columns would take as long as the figure
    frame = frame.assign(**{axes.y: pd.to_numeric(frame[axes.y], errors="coerce")}).dropna(subset=[axes.x, axes.y])
    frame = frame[frame[axes.x] >= 1] if axes.x_log else frame  # step 0 has no place on a log axis
    drawable = frame[np.isfinite(frame[axes.y]) & ((frame[axes.y] > 0) | (not axes.y_log))]
    if drawable.empty:
        return None
    finished = data.trials.loc[data.trials["state"] == "ok", "trial_id"]
    groups = group_trials(data.trials, drawable.assign(of_finished=drawable["trial_id"].isin(finished)), by)
    firsts = spread(unique(key[:1] for key, _ in groups), MAX_GROUPS)
    rests = spread_alike(unique(key[1:] for key, _ in groups), len(DASHES), lambda rest: key_parts(by[1:], rest))
    shown = [(key, part) for key, part in groups if key[:1] in firsts and key[1:] in rests]
    colours = dict(zip(firsts, viridis(len(firsts)), strict=True))
    dashes = dict(zip(rests, DASHES, strict=False))
    traces: list[Trace] = []
    for key, part in shown:
        group = f"g{firsts.index(key[:1])}"
        line = {"color": colours[key[:1]], "dash": dashes[key[1:]]}
        light, strong = _trial_line(part, axes, MAX_LINES // len(shown)), _mean_line(part, axes)
        traces.append(make_trace(*light, group, line=line | {"width": 1}, opacity=0.3))
        mode = "lines" if axes.x_log else "lines+markers"
        text = escape_for_plotly(", ".join(f"{name} = {value}" for name, value in zip(by, key, strict=True)))
        hover = {"hovertext": text, "hoverinfo": "x+y+text"}
        traces.append(make_trace(*strong, group, mode=mode, line=line | {"width": 2}, marker={"size": 5}) | hover)
    keys = _line_keys(by, colours, dashes)
    layout = make_layout(axes, drawable[axes.y], legend=by[:1])
    layout["legend"]["traceorder"] = (
        "grouped"  # short names of the colours beside each other, long ones of dashes below
    )
    notes = omission_notes(len(shown), len(groups), len(frame) - len(drawable), log=axes.y_log)
    return Plot(axes.y_title, traces + keys, layout, notes)


def _line_keys(by: list[str], colours: dict[tuple[str, ...], str], dashes: dict[tuple[str, ...], str]) -> list[Trace]:
    """What the colours mean, then what the dashes mean."""
    keys = []
    for index, (key, colour) in enumerate(colours.items()):
        names = [escape_for_plotly(value) for value in key]
        keys += [make_trace([None], [None], f"g{index}", name=name, line={"color": colour}) for name in names]
    if len(dashes) > 1:
        for key, dash in dashes.items():
            text = escape_for_plotly(", ".join(f"{name} = {value}" for name, value in zip(by[1:], key, strict=True)))
            keys.append(make_trace([None], [None], "dashes", name=text, line={"color": GREY, "dash": dash}))
    return keys


def _trial_line(part: pd.DataFrame, axes: Axes, num_trials: int) -> tuple[list[Any], list[Any]]:
    """So many trials of a group, evenly chosen, as one line with gaps."""
    chosen = spread(list(part["trial_id"].unique()), num_trials)
    ordered = part.loc[part["trial_id"].isin(chosen), ["trial_id", axes.x, axes.y]].sort_values(axes.x, kind="stable")
    all_x, all_y, of_trial = (ordered[name].to_numpy() for name in (axes.x, axes.y, "trial_id"))
    x: list[Any] = []
    y: list[Any] = []
    for trial_id in chosen:
        rows = np.flatnonzero(of_trial == trial_id)
        thin = rows[thin_indices(len(rows), MAX_POINTS // MAX_LINES)]
        x += [*all_x[thin], None]
        y += [*all_y[thin], None]
    return x, y


def _mean_line(part: pd.DataFrame, axes: Axes) -> tuple[Any, Any]:
    """The mean over finished trials, or over all where none has finished; geometric on a log axis."""
    # a trial that stops half-way would bend the mean
    good = part[part["of_finished"]] if part["of_finished"].any() else part
    values = np.log(good[axes.y]) if axes.y_log else good[axes.y]
    mean = values.groupby(good[axes.x]).mean()
    mean = mean.iloc[thin_indices(len(mean), MAX_POINTS // MAX_LINES)]
    return mean.index, np.exp(mean) if axes.y_log else mean
