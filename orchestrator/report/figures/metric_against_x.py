"""Plot the fitted rates: each metric against x with its power laws, the exponents against the groups, and the residuals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power, preferred_models
from depthrate.orchestrator.report.curve_groups import (
    Group,
    setting_text,
    sort_key,
    split_facets,
    thin_indices,
    varying_places,
)
from depthrate.orchestrator.report.figure import (
    ALARM,
    MAX_LINES,
    MAX_POINTS,
    MUTED,
    Axis,
    Band,
    Bars,
    Dots,
    EndLabel,
    Facet,
    Figure,
    Key,
    Line,
    Mark,
    colours_of,
    mean_marks,
    omission_notes,
    value_axis,
)
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import (
    curve_label,
    interval_of,
    is_finite,
    is_number,
    minus_signs,
    shorten,
    signed_text,
    value_text,
)
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.fits.rates import predict

HALF = 0.5
"""Exponent of the reference line."""
NEAR_HALF = 0.15
"""Distance of the exponents from a half up to which the reference line is shown."""
DODGE = 0.02
"""Distance of lines at the same value in the figure of exponents, as a share of the axis."""


def rate_plots(curves: Sequence[FittedCurve]) -> list[Figure]:
    """Plot each metric against x on log axes, one line per group, and the exponents of the groups and the residuals."""
    requests: dict[tuple[str, str], list[FittedCurve]] = {}
    for curve in sorted(curves, key=lambda curve: sort_key(tuple(curve.by.values()))):
        requests.setdefault((curve_label(curve), curve.x), []).append(curve)
    order = dict.fromkeys((curve_label(curve), curve.x) for curve in curves)
    figures: list[Figure | None] = []
    for label, x in order:
        figures += [plot(label, minus_signs(shorten(x)), requests[label, x]) for plot in _PLOTS]
    return [figure for figure in figures if figure is not None]


def _fit_plot(label: str, x: str, curves: Sequence[FittedCurve]) -> Figure | None:
    drawable = [(curve, points) for curve in curves if not (points := _positive_points(curve)).empty]
    if not drawable:
        return None
    groups, omissions = _grouped(drawable)
    x_axis = value_axis(x, pd.concat([points["x"] for _, points in drawable]), is_log=True)
    y_axis = Axis(title=label, is_log=True)
    budget = MAX_POINTS // len(drawable)
    facets = [Facet(title=title, x=x_axis, y=y_axis, marks=_fit_marks(part, budget)) for title, part in groups]
    num_dropped = sum(len(curve.points) - len(points) for curve, points in drawable)
    notes = ["Dots: geometric means. Bands: range over trials. Lines: power laws, with exponent and 95 % interval."]
    if not all(adequate_power(curve) for curve, _ in drawable):
        notes.append("Hollow: no power law fits.")
    if any(isinstance(mark, Dots) and mark.symbol == "up" for facet in facets for mark in facet.marks):
        notes.append("Triangles: excluded trials.")
    notes += [*omissions, *omission_notes(0, 0, num_dropped, log=True)]
    return Figure(f"{label} against {x}", facets, notes, _group_keys(groups))


def _grouped(
    curves: Sequence[tuple[FittedCurve, pd.DataFrame]],
) -> tuple[list[tuple[str, list[Group[tuple[FittedCurve, pd.DataFrame]]]]], list[str]]:
    names = list(curves[0][0].by)
    return split_facets(names, [(_texts(curve), (curve, points)) for curve, points in curves], "groups")


def _texts(curve: FittedCurve) -> tuple[str, ...]:
    return tuple(map(value_text, curve.by.values()))


def _group_keys(groups: Sequence[tuple[str, Sequence[Group[tuple[FittedCurve, pd.DataFrame]]]]]) -> list[Key]:
    """Return legend entries for the groups' colours."""
    keys = {group.name: Key(group.name, group.colour, "dot") for _, part in groups for group in part if group.name}
    return list(keys.values())


def _positive_points(curve: FittedCurve) -> pd.DataFrame:
    """Return the points that log axes can show."""
    points = curve.points[["x", "y"]].astype(float)
    drawable = ((points > 0) & (points < np.inf)).all(axis=1)
    return curve.points.loc[drawable].astype({"x": float, "y": float})


def _fit_marks(groups: Sequence[Group[tuple[FittedCurve, pd.DataFrame]]], budget: int) -> list[Mark]:
    """Return bands, then trials, then lines and means, so that no band hides a line."""
    bands, dots, lines, labels = list[Mark](), list[Mark](), list[Mark](), list[Mark]()
    for group in groups:
        curve, points = group.content
        colour, means, power = group.colour, _mean_table(points), adequate_power(curve)
        at = {"colour": colour, "name": group.name}
        if (means["count"] > 1).any():
            bands.append(Band(x=means["x"].tolist(), low=means["low"].tolist(), high=means["high"].tolist(), **at))
            dots.append(_trial_dots(points, "y", group, budget))
        model = power or next(iter(preferred_models(curve).models), None)
        x = np.geomspace(points["x"].min(), points["x"].max(), 30)
        if model is not None and len(means) > 1:
            lines.append(Line(x=x.tolist(), y=predict(model, x).tolist(), dash="" if power else "dot", **at))
        symbol = "dot" if power else "ring"
        lines.append(
            Dots(x=means["x"].tolist(), y=means["mean"].tolist(), symbol=symbol, is_joined=model is None, **at)
        )
        text, detail = _label(curve)
        end = {"x": float(means["x"].iloc[-1]), "y": float(means["mean"].iloc[-1]), "symbol": symbol}
        labels.append(EndLabel(text=text, detail=detail, colour=colour, **end))
    excluded = _excluded_x([group.content[0] for group in groups])
    if excluded:
        bottom = min(float(group.content[1]["y"].min()) for group in groups)
        dots.append(Dots(x=excluded, y=[bottom] * len(excluded), colour=ALARM, name="excluded", size=7, symbol="up"))
    return [*bands, *dots, *lines, *labels]


def _label(curve: FittedCurve) -> tuple[str, str]:
    """Return the exponent and its interval, or the reason for a missing power law."""
    power = adequate_power(curve)
    if power is not None:
        interval = interval_of(power)
        ends = f"[{', '.join(signed_text(end, '.2f') for end in interval)}]" if interval else "no interval"
        return signed_text(power.exponent, ".2f"), ends
    if curve.power is None:
        return "no fit", ""
    models = preferred_models(curve).models
    detail = f"R² {curve.power.r2:.2f}" if is_finite(curve.power.r2) else ""
    return "no power law", MODELS[models[0].model].words if models else detail


def _trial_dots(points: pd.DataFrame, y: str, group: Group[tuple[FittedCurve, pd.DataFrame]], budget: int) -> Dots:
    thin = points.sort_values(["x", y]).iloc[thin_indices(len(points), budget)]
    x, values = thin["x"].tolist(), thin[y].tolist()
    return Dots(x=x, y=values, colour=group.colour, name=group.name, size=2.5, opacity=0.7)


def _excluded_x(curves: Sequence[FittedCurve]) -> list[float]:
    """Return the x of excluded trials: diverged, zero, negative."""
    points = [point for curve in curves for point in curve.left_out if point["reason"] != "below the cut-off"]
    return [float(point["x"]) for point in points if is_number(point["x"]) and point["x"] > 0][:MAX_POINTS]


def _mean_table(points: pd.DataFrame) -> pd.DataFrame:
    """Return, per x, the geometric mean, the range and the number of values."""
    logs = np.log(points["y"]).groupby(points["x"]).agg(["mean", "min", "max", "count"])
    table = {"mean": np.exp(logs["mean"]), "low": np.exp(logs["min"]), "high": np.exp(logs["max"])}
    return pd.DataFrame(table | {"count": logs["count"]}).reset_index()


def _exponent_plot(label: str, x: str, curves: Sequence[FittedCurve]) -> Figure | None:
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
    lines: dict[str, list[tuple[FittedCurve, RateFit]]] = {}
    for (curve, power), key in zip(fitted, keys, strict=True):
        others = [place for place in varying if place != along]
        lines.setdefault(setting_text([names[i] for i in others], [key[i] for i in others]), []).append((curve, power))
    marks: list[Mark] = []
    for number, (name, line) in enumerate(list(lines.items())[:MAX_LINES]):
        points = []
        for curve, power in line:
            value, shift = _texts(curve)[along], DODGE * (number - (min(len(lines), MAX_LINES) - 1) / 2)
            place = _shifted(place_of[value], shift, places, is_log=is_log)
            points.append((place, power, adequate_power(curve) is not None, colour_of[value]))
        marks += _exponent_marks(points, name)
    exponents = [power.exponent for _, power in fitted]
    if min(exponents) - NEAR_HALF <= HALF <= max(exponents) + NEAR_HALF:
        half = Line(x=[min(places), max(places)], y=[HALF, HALF], colour=MUTED, name="½", width=1, dash="dot")
        marks = [half, *marks, EndLabel(x=max(places), y=HALF, text="½", colour=MUTED, symbol="")]
    ticks = {} if is_numeric else {"ticks": tuple(places), "names": tuple(map(shorten, values))}
    x_axis = replace(value_axis(names[along], places, is_log=is_log), **ticks)
    facet = Facet(x=x_axis, y=Axis(title="exponent"), marks=marks)
    notes = [
        "Bars: 95 % intervals. Hollow: no power law fits.",
        *omission_notes(min(len(lines), MAX_LINES), len(lines)),
    ]
    return Figure(f"Exponent of {label} over {x}, against {shorten(names[along])}", [facet], notes)


def _shifted(place: float, shift: float, places: Sequence[float], *, is_log: bool) -> float:
    """Move a place by a share of the axis, so that intervals at the same value do not overlap."""
    low, high = min(places), max(places)
    return place * (high / low) ** shift if is_log else place + shift * (high - low)


def _exponent_marks(points: Sequence[tuple[float, RateFit, bool, str]], name: str) -> list[Mark]:
    """Return one line of (place, power law, whether it is adequate, colour)."""
    x, y = [place for place, *_ in points], [power.exponent for _, power, *_ in points]
    marks: list[Mark] = [Line(x=x, y=y, colour=MUTED, name=name, width=1, dash="join")]
    for place, power, is_adequate, colour in points:
        at = {"x": [place], "colour": colour, "name": name}
        if is_adequate and (interval := interval_of(power)):
            marks.append(Bars(low=[interval[0]], high=[interval[1]], **at))
        marks.append(Dots(y=[power.exponent], symbol="dot" if is_adequate else "ring", **at))
    return [*marks, EndLabel(x=x[-1], y=y[-1], text=name, colour=MUTED, symbol="")] if name else marks


def _residual_plot(label: str, x: str, curves: Sequence[FittedCurve]) -> Figure | None:
    """Plot log y minus the log of the fitted power law, for the curves of one metric and x, if any curve has a fit."""
    drawable = [(curve, _residuals(curve)) for curve in curves if curve.power]
    if not drawable:
        return None
    groups, omissions = _grouped(drawable)
    x_axis = value_axis(x, pd.concat([points["x"] for _, points in drawable]), is_log=True)
    axes = {"x": x_axis, "y": Axis(title=f"ln {label} − fit")}
    ends = (
        [min(x_axis.ticks), max(x_axis.ticks)]
        if x_axis.ticks
        else [points["x"].agg(["min", "max"]) for _, points in drawable][0].tolist()
    )
    facets = []
    for title, part in groups:
        marks: list[Mark] = [Line(x=ends, y=[0, 0], colour=MUTED, width=1, dash="dash")]
        for group in part:
            points = group.content[1]
            marks.append(_trial_dots(points, "residual", group, MAX_POINTS // len(drawable)))
            means = points.groupby("x")["residual"].mean()
            marks += mean_marks(means.index, means, group.name, group.colour)
        facets.append(Facet(title=title, marks=marks, **axes))
    return Figure(f"Residuals of {label} from the power law", facets, omissions)


def _residuals(curve: FittedCurve) -> pd.DataFrame:
    assert curve.power is not None
    points = _positive_points(curve)
    points = points.assign(residual=np.log(points["y"]) - np.log(predict(curve.power, points["x"].to_numpy())))
    return points[np.isfinite(points["residual"])]


_PLOTS = (_fit_plot, _exponent_plot, _residual_plot)


def _lead(data: ReportData) -> str:
    return (
        "At the last step. Small dots: trials. Residuals of ln y: 0.1 is about 10 %. "
        "A bend common to all seeds suggests another law, or too small x."
    )


SECTION = ReportSection(10, "Rates", lambda data: rate_plots(data.fits), _lead, "No fits yet.")
