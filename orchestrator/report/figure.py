"""Describe figures: facets with axes and marks. `report.drawing` renders them for the page and for files."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.sheet.fit_sheet import is_finite
from depthrate.orchestrator.sheet.names import shorten

MUTED = "muted"
"""Colour of reference lines."""
HALF = 0.5
"""Exponent of the reference line."""
ALARM = "alarm"
"""Colour of excluded trials."""
RAMP_STEPS = 9
NUM_KINDS = 6
MAX_LINES = 8
"""Maximum number of groups in a facet, so that their colours differ."""
MAX_FACETS = 9
MAX_POINTS = 3000
"""Maximum number of dots in one figure."""
DASHES = ("dash", "dot", "dashdot")
"""Dash styles of different reference lines."""
LOG_FACTOR = 8
"""Minimum range of positive values for a log axis by default, as a factor."""
Numbers: TypeAlias = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points, joined by a line or drawn as symbols or both. A line has gaps at values that are not finite."""

    x: Numbers
    y: Numbers
    colour: str
    name: str = ""
    """Name in data files."""
    is_named: bool = False
    """Whether the figure shows the name, at the line's end or in the legend."""
    width: float = 0.0
    """Width of the line. Zero: no line."""
    dash: str = ""
    symbol: str = ""
    """dot, ring (hollow), up or down (triangles). Empty: no symbols."""
    size: float = 5.0
    """Size of the symbols."""
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """The area between two lines, or vertical bars."""

    x: Numbers
    low: Numbers
    high: Numbers
    colour: str
    name: str = ""
    is_bars: bool = False


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Rows of values in coloured cells, with the first row on top and a colour bar."""

    values: np.ndarray
    label: str
    """Name of the values."""
    low: float
    high: float
    is_diverging: bool = False
    has_numbers: bool = True
    """Whether the cells show their values, if all of them fit."""


@dataclass(frozen=True, kw_only=True)
class EndLabel:
    """One or two lines of text to the right of a point."""

    x: float
    y: float
    text: str
    detail: str = ""
    colour: str
    symbol: str = "dot"


Mark: TypeAlias = Series | Range | HeatMap | EndLabel


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a facet."""

    title: str
    is_log: bool = False
    ticks: tuple[float, ...] = ()
    """Default: round numbers."""
    names: tuple[str, ...] = ()
    """Texts of the ticks. Default: the numbers."""
    ends: tuple[float, float] | None = None
    """Default: the range of the marks, with padding."""


@dataclass(frozen=True, kw_only=True)
class Facet:
    """One panel of a figure."""

    title: str = ""
    x: Axis
    y: Axis
    marks: list[Mark]
    is_square: bool = False
    """Whether a unit has the same length on both axes."""


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    name: str
    colour: str = MUTED
    symbol: str = "line"
    """line, or a symbol of Series."""
    dash: str = ""


@dataclass(frozen=True)
class Figure:
    """Facets with one title, and the sentences below them."""

    title: str
    facets: list[Facet]
    notes: list[str] = field(default_factory=list)
    """Sentences without markup, escaped on rendering."""
    keys: list[Key] = field(default_factory=list)
    """Entries of the legend in addition to named marks."""
    legend_title: str = ""
    has_common_axes: bool = True
    """Whether all facets have the same ranges."""


def colours_of(names: Sequence[str]) -> list[str]:
    """Return a colour per name: a ramp for ordered values, and distinct kinds for words."""
    if len(names) == 1:
        return ["ramp-0"]
    if len(names) <= NUM_KINDS and not all(map(_is_number, names)):
        return [f"kind-{index}" for index in range(len(names))]
    places = np.linspace(0, RAMP_STEPS - 1, min(len(names), RAMP_STEPS)).round().astype(int)
    return [f"ramp-{places[index % len(places)]}" for index in range(len(names))]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def numbers(values: Iterable[Any]) -> list[float]:
    """Return floats, with NaN instead of missing and infinite values."""
    return [float(value) if is_finite(value) else math.nan for value in values]


def mean_line(x: Iterable[Any], y: Iterable[Any], name: str, colour: str, **options: Any) -> Series:
    """Return the strong line of a group with dots. A name is shown."""
    looks: dict[str, Any] = {"is_named": bool(name), "width": 1.8, "symbol": "dot"} | options
    return Series(x=numbers(x), y=numbers(y), colour=colour, name=name, **looks)


def trial_dots(x: Iterable[Any], y: Iterable[Any], name: str, colour: str, **options: Any) -> Series:
    """Return small dots without a line, one per trial."""
    looks: dict[str, Any] = {"symbol": "dot", "size": 3, "opacity": 0.6} | options
    return Series(x=numbers(x), y=numbers(y), colour=colour, name=name, **looks)


def is_log(requested: str, values: Iterable[float]) -> bool:
    """Return whether an axis is logarithmic, as requested or, without a request, according to its values."""
    array = np.asarray(list(values), dtype=np.float64)
    if requested:
        return requested == "log" and bool((array > 0).all())
    return array.size > 0 and bool(array.min() > 0) and bool(array.max() >= LOG_FACTOR * array.min())


def value_axis(title: str, values: Iterable[float], *, is_log: bool) -> Axis:
    """Return an axis with ticks at its values, or at round numbers if there are many values."""
    distinct = sorted({float(value) for value in values})
    ticks = tuple(distinct) if len(distinct) <= 10 and (distinct[0] > 0 or not is_log) else ()
    return Axis(title=shorten(title), is_log=is_log, ticks=ticks)


def map_facet(
    heat: HeatMap, x_title: str, y_title: str, x_names: Sequence[str], y_names: Sequence[str], **options: Any
) -> Facet:
    """Return the facet of a heat map, with names for its columns and rows."""
    x, y = (
        Axis(title=title, ticks=tuple(range(len(names))), names=tuple(names), ends=ends)
        for title, names, ends in (
            (x_title, x_names, (-0.5, len(x_names) - 0.5)),
            (y_title, y_names, (len(y_names) - 0.5, -0.5)),
        )
    )
    return Facet(x=x, y=y, marks=[heat], **options)


def with_common_colours(facets: Sequence[Facet]) -> list[Facet]:
    """Give the heat maps of several facets the same range of colours."""
    maps = [mark for facet in facets for mark in facet.marks if isinstance(mark, HeatMap)]
    low, high = min(mark.low for mark in maps), max(mark.high for mark in maps)
    return [
        replace(f, marks=[replace(m, low=low, high=high) if isinstance(m, HeatMap) else m for m in f.marks])
        for f in facets
    ]


def omission_notes(
    num_shown: int, num_groups: int, num_dropped: int = 0, *, log: bool = False, noun: str = "groups"
) -> list[str]:
    """Describe omitted groups and values."""
    notes = [f"{num_shown} of {num_groups} {noun} shown."] if num_shown < num_groups else []
    if num_dropped:
        reason = "zero, negative or not finite" if log else "not finite"
        notes.append(f"{counted(num_dropped, 'value')} omitted: {reason}.")
    return notes
