"""Plot the fitted rates: each metric against x with its power laws, the exponents against the groups, and the residuals."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import followed_power
from depthrate.orchestrator.report.curve_groups import (
    Group,
    facets_of,
    setting_text,
    sort_key,
    split_facets,
    thin_indices,
    varying_places,
)
from depthrate.orchestrator.report.figure import (
    ALARM,
    HALF,
    MAX_LINES,
    MAX_POINTS,
    MUTED,
    Axis,
    EndLabel,
    Facet,
    Figure,
    Key,
    Mark,
    Range,
    colours_of,
    mean_line,
    omission_notes,
    trial_dots,
    value_axis,
)
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import ends_text, interval_of, is_number, signed_text
from depthrate.orchestrator.sheet.fit_words import DOTTED, HOLLOW, LINES, state_label
from depthrate.orchestrator.sheet.markup import minus_signs, typeset
from depthrate.orchestrator.sheet.names import curve_label, shorten, value_text
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.rates import predict

NEAR_HALF = 0.15
"""Distance of the exponents from a half up to which the reference line is shown."""
DODGE = 0.02
"""Distance of lines at the same value in the figure of exponents, as a share of the axis."""


def rate_plots(curves: Sequence[FittedGroup]) -> list[Figure]:
    """Plot each metric against x on log axes, one line per group, and the exponents of the groups."""
    requests = grouped(curves, lambda curve: (typeset(curve_label(curve)), curve.x, tuple(curve.by)))
    figures: list[Figure | None] = []
    for (label, x, _), part in requests.items():
        ordered = sorted(part, key=lambda curve: sort_key(tuple(curve.by.values())))
        figures += [plot(label, minus_signs(shorten(x)), ordered) for plot in (_fit_plot, _exponent_plot)]
    return [figure for figure in figures if figure is not None]


def _fit_plot(label: str, x: str, curves: Sequence[FittedGroup]) -> Figure | None:
    drawable = [(curve, points) for curve in curves if not (points := _positive_points(curve)).empty]
    if not drawable:
        return None
    named = [(_texts(curve), (curve, points)) for curve, points in drawable]
    groups, omissions = split_facets(list(curves[0].by), named, "groups")
    x_axis = value_axis(x, pd.concat([points["x"] for _, points in drawable]), is_log=True)
    budget = MAX_POINTS // len(drawable)
    facets = facets_of(groups, x_axis, Axis(title=label, is_log=True), lambda group: _fit_marks(group, budget))
    # no band hides a line
    facets = [replace(facet, marks=sorted(facet.marks, key=lambda m: not isinstance(m, Range))) for facet in facets]
    notes = [f"Dots: geometric means. Bands: range over trials. {LINES}"]
    notes += [] if all(followed_power(curve) for curve, _ in drawable) else [HOLLOW]
    notes += ["Triangles: excluded trials."] if any(_excluded_x(curve) for curve, _ in drawable) else []
    num_dropped = sum(len(curve.points) - len(points) for curve, points in drawable)
    notes += [*omissions, *omission_notes(0, 0, num_dropped, log=True)]
    keys = {group.name: Key(group.name, group.colour, "dot") for _, part in groups for group in part if group.name}
    return Figure(f"{label} against {x}", facets, notes, list(keys.values()))


def _texts(curve: FittedGroup) -> tuple[str, ...]:
    return tuple(map(value_text, curve.by.values()))


def _positive_points(curve: FittedGroup) -> pd.DataFrame:
    """Return the points that log axes can show."""
    points = curve.points[["x", "y"]].astype(float)
    drawable = ((points > 0) & (points < np.inf)).all(axis=1)
    return curve.points.loc[drawable].astype({"x": float, "y": float})


def _fit_marks(group: Group[tuple[FittedGroup, pd.DataFrame]], budget: int) -> list[Mark]:
    """Return a group's band, trials, means, line and label."""
    (curve, points), name, colour = group.content, group.name, group.colour
    means, power = _mean_table(points), followed_power(curve)
    x, y = means["x"].tolist(), means["mean"].tolist()
    marks: list[Mark] = []
    if (means["count"] > 1).any():
        marks.append(Range(x=x, low=means["low"].tolist(), high=means["high"].tolist(), colour=colour, name=name))
        thin = points.sort_values(["x", "y"]).iloc[thin_indices(len(points), budget)]
        marks.append(trial_dots(thin["x"], thin["y"], name, colour, size=2.5))
    symbol, text, detail = "dot" if power else "ring", *_label(curve)
    model = power or next(iter(curve.preference.models), None)
    if model is not None and len(x) > 1:
        fine = np.geomspace(x[0], x[-1], 30)
        dash = "" if power else "dot"
        marks.append(mean_line(fine, predict(model, fine), name, colour, is_named=False, symbol="", dash=dash))
    join = {"width": 0.0} if model else {"width": 1.0, "dash": "join"}
    marks.append(mean_line(x, y, name, colour, is_named=False, size=6, **(join | {"symbol": symbol})))
    if excluded := _excluded_x(curve):
        lowest = [float(points["y"].min())] * len(excluded)
        marks.append(trial_dots(excluded, lowest, "excluded", ALARM, size=7, symbol="up"))
    return [*marks, EndLabel(x=x[-1], y=y[-1], text=text, detail=detail, colour=colour, symbol=symbol)]


def _label(curve: FittedGroup) -> tuple[str, str]:
    """Return the exponent and its interval, or the reason for a missing power law."""
    power = followed_power(curve)
    if power is not None:
        return signed_text(power.exponent, ".2f"), ends_text(interval_of(power)) or "no interval"
    state, detail = state_label(curve.preference)
    return state, typeset(detail)


def _excluded_x(curve: FittedGroup) -> list[float]:
    """Return the x of excluded trials: diverged, zero, negative."""
    points = [point for point in curve.left_out if point["reason"] != "below the cut-off"]
    return [float(point["x"]) for point in points if is_number(point["x"]) and point["x"] > 0]


def _mean_table(points: pd.DataFrame) -> pd.DataFrame:
    """Return, per x, the geometric mean, the range and the number of values."""
    logs = np.log(points["y"]).groupby(points["x"]).agg(["mean", "min", "max", "count"])
    table = {"mean": np.exp(logs["mean"]), "low": np.exp(logs["min"]), "high": np.exp(logs["max"])}
    return pd.DataFrame(table | {"count": logs["count"]}).reset_index()


def _exponent_plot(label: str, x: str, curves: Sequence[FittedGroup]) -> Figure | None:
    """Plot the exponents against the grouping parameter with the most values, one line per value of the others."""
    fitted = [(curve, power) for curve in curves if (power := curve.power) is not None]
    keys = [_texts(curve) for curve, _ in fitted]
    names, varying = list(curves[0].by), varying_places(keys)
    if not varying:
        return None
    along = max(varying, key=lambda place: (len({key[place] for key in keys}), place))
    values = list(dict.fromkeys(key[along] for key in keys))
    is_numeric = all(is_number(curve.by[names[along]]) for curve, _ in fitted)
    places = [float(value) if is_numeric else index for index, value in enumerate(values)]
    place_of, colour_of = dict(zip(values, places, strict=True)), dict(zip(values, colours_of(values), strict=True))
    is_log = is_numeric and min(places) > 0
    lines: dict[str, list[tuple[FittedGroup, Fit]]] = {}
    for (curve, power), key in zip(fitted, keys, strict=True):
        others = [place for place in varying if place != along]
        lines.setdefault(setting_text([names[i] for i in others], [key[i] for i in others]), []).append((curve, power))
    marks: list[Mark] = []
    for number, (name, line) in enumerate(list(lines.items())[:MAX_LINES]):
        points = []
        for curve, power in line:
            value, shift = _texts(curve)[along], DODGE * (number - (min(len(lines), MAX_LINES) - 1) / 2)
            place = _shifted(place_of[value], shift, places, is_log=is_log)
            points.append((place, power, followed_power(curve) is not None, colour_of[value]))
        marks += _exponent_marks(points, name)
    exponents = [power.exponent for _, power in fitted]
    if min(exponents) - NEAR_HALF <= HALF <= max(exponents) + NEAR_HALF:
        ends = [min(places), max(places)]
        half = mean_line(ends, [HALF, HALF], "½", MUTED, is_named=False, width=1, dash="dot", symbol="")
        marks = [half, *marks, EndLabel(x=max(places), y=HALF, text="½", colour=MUTED, symbol="")]
    ticks: dict[str, Any] = {} if is_numeric else {"ticks": tuple(places), "names": tuple(map(shorten, values))}
    x_axis = replace(value_axis(names[along], places, is_log=is_log), **ticks)
    facet = Facet(x=x_axis, y=Axis(title="exponent"), marks=marks)
    notes = [
        f"Bars: 95 % intervals. {HOLLOW}",
        *omission_notes(min(len(lines), MAX_LINES), len(lines)),
    ]
    return Figure(f"Exponent of {label} over {x}, against {shorten(names[along])}", [facet], notes)


def _shifted(place: float, shift: float, places: Sequence[float], *, is_log: bool) -> float:
    """Move a place by a share of the axis, so that intervals at the same value do not overlap."""
    low, high = min(places), max(places)
    return place * (high / low) ** shift if is_log else place + shift * (high - low)


def _exponent_marks(points: Sequence[tuple[float, Fit, bool, str]], name: str) -> list[Mark]:
    """Return one line of (place, power law, whether it is adequate, colour)."""
    x, y = [place for place, *_ in points], [power.exponent for _, power, *_ in points]
    marks: list[Mark] = [mean_line(x, y, name, MUTED, is_named=False, width=1, dash="join", symbol="")]
    for place, power, is_adequate, colour in points:
        if is_adequate and (interval := interval_of(power)):
            low, high = interval
            marks.append(Range(x=[place], low=[low], high=[high], colour=colour, name=name, is_bars=True))
        symbol = "dot" if is_adequate else "ring"
        marks.append(trial_dots([place], [power.exponent], name, colour, size=6, opacity=1, symbol=symbol))
    return [*marks, EndLabel(x=x[-1], y=y[-1], text=name, colour=MUTED, symbol="")] if name else marks


def _lead(data: ReportData) -> str:
    return f"At the last step. Small dots: trials. {DOTTED}"


SECTION = ReportSection(10, "Rates", lambda data: rate_plots(data.fits), _lead, "No fits yet.")
