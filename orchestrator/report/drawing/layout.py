"""Place a figure's marks, ticks and texts as shapes in pixels, with y downwards. Files and the page have the same layout."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from depthrate.orchestrator.report.drawing.scale import Scale, padded, ticks
from depthrate.orchestrator.report.drawing.style import DIVERGING, SEQUENTIAL, FigureStyle
from depthrate.orchestrator.report.figure import (
    MAX_NUMBERED_COLUMNS,
    Axis,
    Band,
    Bars,
    Dots,
    EndLabel,
    Facet,
    Figure,
    HeatMap,
    Key,
    Line,
)
from depthrate.orchestrator.report.text import minus_signs

MAX_END_NAME = 18
"""Maximum number of characters of a name at a line's end. With longer names the figure has a legend."""
_NARROW = set("ijltfI.,:;|'![]() ")
_WIDE = set("mwMW—%")
_COLOUR_BAR = 10.0
"""Width of a colour bar."""


@dataclass(frozen=True)
class Stroke:
    """Lines through points. Each part is an array of (x, y)."""

    parts: list[np.ndarray]
    colour: str
    width: float
    dash: str = ""
    opacity: float = 1.0


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: np.ndarray
    colour: str
    opacity: float


@dataclass(frozen=True)
class Spots:
    """Dots, rings or triangles."""

    points: np.ndarray
    colour: str
    size: float
    symbol: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Image:
    """Pixels (rows, columns, RGB) stretched over a box."""

    pixels: np.ndarray
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Text:
    """A text with its baseline at y."""

    x: float
    y: float
    text: str
    size: float
    colour: str = "ink"
    anchor: str = "start"
    """start, middle or end."""
    is_bold: bool = False


Shape: TypeAlias = Stroke | Area | Spots | Image | Text


@dataclass(frozen=True)
class Layout:
    """Shapes of one facet."""

    width: float
    height: float
    shapes: list[Shape]


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in a usual sans-serif font."""
    units = sum(0.3 if c in _NARROW else 0.86 if c in _WIDE else 0.66 if c.isupper() else 0.55 for c in text)
    return size * units


def legend_keys(figure: Figure) -> list[Key]:
    """Return the legend's entries. It omits names that are shown at the lines' ends."""
    named = [mark for facet in figure.facets for mark in facet.marks if isinstance(mark, Line | Dots) and mark.is_named]
    if has_end_names(figure):
        named = []
    keys = {mark.name: Key(mark.name, mark.colour, "line" if isinstance(mark, Line) else "dot") for mark in named}
    return [*keys.values(), *figure.keys]


def has_end_names(figure: Figure) -> bool:
    """Return whether lines are named at their ends: all names are short, and no other label is there."""
    marks = [mark for facet in figure.facets for mark in facet.marks]
    names = [mark.name for mark in marks if isinstance(mark, Line | Dots) and mark.is_named]
    is_free = not any(isinstance(m, EndLabel) or (isinstance(m, Dots) and m.is_named) for m in marks)
    return is_free and len(set(names)) == len(names) and all(len(name) <= MAX_END_NAME for name in names)


def layouts(figure: Figure, style: FigureStyle, width: float) -> list[Layout]:
    """Return the layout of each facet."""
    ends = [(_ends(f.x, [f], "x"), _ends(f.y, [f], "y")) for f in figure.facets]
    if figure.has_common_axes:
        first = figure.facets[0]
        ends = [(_ends(first.x, figure.facets, "x"), _ends(first.y, figure.facets, "y"))] * len(figure.facets)
    has_names = has_end_names(figure)
    labels = [_end_labels(facet, has_names=has_names) for facet in figure.facets]
    return [
        _FacetLayout(style, width, facet, *facet_ends, facet_labels).layout()
        for facet, facet_ends, facet_labels in zip(figure.facets, ends, labels, strict=True)
    ]


def _ends(axis: Axis, facets: Iterable[Facet], name: str) -> tuple[float, float]:
    if axis.ends is not None:
        return axis.ends
    fields = ("x",) if name == "x" else ("y", "low", "high")
    marks = [mark for facet in facets for mark in facet.marks if not isinstance(mark, HeatMap)]
    parts = [np.atleast_1d(np.asarray(getattr(m, f), dtype=np.float64)) for m in marks for f in fields if hasattr(m, f)]
    return padded(np.concatenate([*parts, np.array(axis.ticks, dtype=np.float64)]), is_log=axis.is_log)


def _end_labels(facet: Facet, *, has_names: bool) -> list[EndLabel]:
    labels = [mark for mark in facet.marks if isinstance(mark, EndLabel)]
    for mark in facet.marks if has_names else ():
        if isinstance(mark, Line) and mark.is_named:
            is_drawable = np.isfinite(mark.x) & np.isfinite(mark.y)
            if is_drawable.any():
                last = int(np.flatnonzero(is_drawable)[-1])
                labels.append(EndLabel(x=mark.x[last], y=mark.y[last], text=mark.name, colour=mark.colour))
    return labels


class _FacetLayout:
    """Layout of one facet."""

    def __init__(
        self,
        style: FigureStyle,
        width: float,
        facet: Facet,
        x_ends: tuple[float, float],
        y_ends: tuple[float, float],
        labels: Sequence[EndLabel],
    ) -> None:
        self._style, self._facet, self._labels, self._width = style, facet, labels, width
        size = style.text
        self._small = size - 1
        self._height = style.facet_height(width)
        heat = next((mark for mark in facet.marks if isinstance(mark, HeatMap)), None)
        top = size * (0.9 + 1.4 * bool(facet.title) + 1.4 * bool(facet.y.title or (heat and heat.label)))
        bottom = self._height - size * 3.1
        self._y_ticks = ticks(facet.y, *y_ends, num=round((bottom - top) / (4 * size)))
        left = max((text_width(text, self._small) for _, text in self._y_ticks), default=0.0) + 0.9 * size
        self._right = width - self._right_margin(heat)
        if facet.is_square and heat is not None:
            rows, columns = heat.values.shape
            side = min((bottom - top) / rows, (self._right - left) / columns)
            bottom, self._right = top + side * rows, left + side * columns
            self._height = bottom + size * 3.1
        elif facet.is_square:
            x_ends, y_ends = _equal_units(x_ends, y_ends, self._right - left, bottom - top)
        self._top, self._bottom, self._left = top, bottom, left
        self._x = Scale(*x_ends, left, self._right, facet.x.is_log)
        self._y = Scale(*y_ends, bottom, top, facet.y.is_log)
        self._shapes: list[Shape] = []

    def _right_margin(self, heat: HeatMap | None) -> float:
        size = self._style.text
        if heat is not None:
            names = (_tick_text(heat.low), _tick_text(heat.high))
            return _COLOUR_BAR + 1.4 * size + max(text_width(text, self._small) for text in names)
        widths = [text_width(text, size) for label in self._labels for text in (label.text, label.detail)]
        return max(widths) + 2.4 * size if widths else 1.4 * size

    def layout(self) -> Layout:
        self._add_axes()
        for mark in self._facet.marks:
            self._add_mark(mark)
        self._add_labels()
        return Layout(self._width, round(self._height, 1), self._shapes)

    def _add_axes(self) -> None:
        size, shapes, facet = self._style.text, self._shapes, self._facet
        line = 0.8 * max(self._style.scale, 0.6)
        x_ticks = self._separate(ticks(facet.x, self._x.low, self._x.high, num=5))
        x_places = self._x([value for value, _ in x_ticks])
        y_places = self._y([value for value, _ in self._y_ticks])
        frame = [(self._left, self._top), (self._left, self._bottom), (self._right, self._bottom)]
        marks = [[(x, self._bottom), (x, self._bottom + 3)] for x in x_places]
        marks += [[(self._left - 3, y), (self._left, y)] for y in y_places]
        if not any(isinstance(mark, HeatMap) for mark in facet.marks):
            shapes.append(Stroke([np.array(points) for points in (frame, *marks)], "axis", line))
        for x, (_, text) in zip(x_places, x_ticks, strict=True):
            shapes.append(Text(x, self._bottom + 1.35 * size, text, self._small, "muted", "middle"))
        gap = 0.3 * size
        for y, (_, text) in zip(y_places, self._y_ticks, strict=True):
            shapes.append(Text(self._left - 3 - gap, y + 0.35 * self._small, text, self._small, "muted", "end"))
        shapes.append(Text(self._right, self._bottom + 2.6 * size, facet.x.title, self._small, "muted", "end"))
        above = self._top - 0.7 * size
        if facet.y.title:
            shapes.append(Text(0, above, facet.y.title, self._small, "muted"))
            above -= 1.4 * size
        if facet.title:
            shapes.append(Text(0, above, facet.title, size, is_bold=True))

    def _separate(self, x_ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
        """Return the ticks whose texts do not touch the previous one."""
        shown: list[tuple[float, str]] = []
        end = -math.inf
        for value, text in x_ticks:
            half, place = text_width(text, self._small) / 2, float(self._x([value])[0])
            if place - half > end + 0.4 * self._small:
                shown.append((value, text))
                end = place + half
        return shown

    def _add_mark(self, mark: object) -> None:
        scale = self._style.scale
        if isinstance(mark, Line):
            parts = _parts(self._x(mark.x), self._y(mark.y))
            self._shapes.append(Stroke(parts, mark.colour, mark.width * scale, mark.dash, mark.opacity))
        elif isinstance(mark, Dots):
            x, y = self._x(mark.x), self._y(mark.y)
            if mark.is_joined:
                self._shapes.append(Stroke(_parts(x, y), mark.colour, 1.0 * scale, "join"))
            points = np.column_stack([x, y])[np.isfinite(x) & np.isfinite(y)]
            self._shapes.append(Spots(points, mark.colour, mark.size * scale, mark.symbol, mark.opacity))
        elif isinstance(mark, Band):
            x, low, high = self._x(mark.x), self._y(mark.low), self._y(mark.high)
            drawn = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
            outline = np.vstack(
                [np.column_stack([x[drawn], low[drawn]]), np.column_stack([x[drawn], high[drawn]])[::-1]]
            )
            self._shapes.append(Area(outline, mark.colour, 0.15))
        elif isinstance(mark, Bars):
            ends = zip(self._x(mark.x), self._y(mark.low), self._y(mark.high), strict=True)
            parts = [np.array([(x, low), (x, high)]) for x, low, high in ends if np.isfinite([x, low, high]).all()]
            self._shapes.append(Stroke(parts, mark.colour, 1.3 * scale, opacity=0.7))
        elif isinstance(mark, HeatMap):
            self._add_heat_map(mark)

    def _add_heat_map(self, mark: HeatMap) -> None:
        size, small = self._style.text, self._small
        colours = DIVERGING if mark.is_diverging else SEQUENTIAL
        span = mark.high - mark.low
        shares = np.clip((mark.values - mark.low) / span if span else np.full(mark.values.shape, 0.5), 0, 1)
        width, height = self._right - self._left, self._bottom - self._top
        self._shapes.append(Image(_coloured(shares, colours), self._left, self._top, width, height))
        if mark.has_numbers and mark.values.shape[1] <= MAX_NUMBERED_COLUMNS:
            self._add_numbers(mark, shares, colours)
        x = self._right + 0.7 * size
        bar = _coloured(np.linspace(1, 0, 64)[:, None], colours)
        self._shapes.append(Image(bar, x, self._top, _COLOUR_BAR * self._style.scale, height))
        for value, y in ((mark.high, self._top + small), (mark.low, self._bottom)):
            self._shapes.append(
                Text(x + _COLOUR_BAR * self._style.scale + 0.3 * size, y, _tick_text(value), small, "muted")
            )
        if mark.label:
            above = self._top - 0.7 * size
            self._shapes.append(Text(self._right + self._right_margin(mark), above, mark.label, small, "muted", "end"))

    def _add_numbers(self, mark: HeatMap, shares: np.ndarray, colours: Sequence[str]) -> None:
        luminance = _coloured(shares, colours) @ np.array([0.299, 0.587, 0.114])
        for (row, column), value in np.ndenumerate(mark.values):
            if np.isfinite(value):
                x, y = float(self._x([column])[0]), float(self._y([row])[0])
                colour = "#ffffff" if luminance[row, column] < 140 else "#1b1c1f"
                text = minus_signs(f"{value:.3g}")
                self._shapes.append(Text(x, y + 0.35 * self._small, text, self._small, colour, "middle"))

    def _add_labels(self) -> None:
        """Add the texts to the right of the axes, moved apart, with lines to their points."""
        size = self._style.text
        drawn = [label for label in self._labels if np.isfinite([*self._x([label.x]), *self._y([label.y])]).all()]
        drawn.sort(key=lambda label: float(self._y([label.y])[0]))
        heights = [size * (2.3 if label.detail else 1.2) for label in drawn]
        wanted = [float(self._y([label.y])[0]) for label in drawn]
        x = self._right + 0.9 * size
        for label, point, middle, height in zip(
            drawn, wanted, _spread_out(wanted, heights, self._top, self._bottom), heights, strict=True
        ):
            point_x = float(self._x([label.x])[0])
            if abs(middle - point) > 0.4 * size or x - point_x > 1.5 * size:
                leader = np.array([(point_x + 0.4 * size, point), (x - 0.3 * size, middle)])
                self._shapes.append(Stroke([leader], "axis", 0.7 * self._style.scale))
            first = middle - height / 2 + 0.92 * size
            if label.symbol:
                spot = np.array([(x + 0.2 * size, first - 0.35 * size)])
                self._shapes.append(Spots(spot, label.colour, 6 * self._style.scale, label.symbol))
            text_x = x + (0.8 * size if label.symbol else 0.1 * size)
            is_value = bool(label.detail) and label.symbol == "dot"
            self._shapes.append(Text(text_x, first, label.text, size, is_bold=is_value))
            if label.detail:
                self._shapes.append(Text(text_x, first + 1.1 * size, label.detail, self._small, "muted"))


def legend_layout(title: str, keys: Sequence[Key], style: FigureStyle, width: float) -> Layout:
    """Return the legend of a file, in rows above the facets."""
    size = style.text
    shapes: list[Shape] = []
    x, y = 0.0, 1.2 * size
    for key in [Key(title, symbol=""), *keys] if title else keys:
        needed = text_width(key.name, size) + (0.0 if not key.symbol else 2.4 * size) + 1.2 * size
        if x and x + needed > width:
            x, y = 0.0, y + 1.5 * size
        text_x = x
        if key.symbol == "line":
            line = np.array([(x, y - 0.35 * size), (x + 1.8 * size, y - 0.35 * size)])
            shapes.append(Stroke([line], key.colour, 1.8 * style.scale, key.dash))
            text_x = x + 2.2 * size
        elif key.symbol:
            spot = np.array([(x + 0.5 * size, y - 0.35 * size)])
            shapes.append(Spots(spot, key.colour, 6 * style.scale, key.symbol))
            text_x = x + 1.2 * size
        shapes.append(Text(text_x, y, key.name, size, "ink" if key.symbol else "muted"))
        x += needed
    return Layout(width, y + 0.8 * size if shapes else 0.0, shapes)


def _spread_out(wanted: Sequence[float], heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return the middles of boxes of these heights that do not overlap, near the wanted middles in ascending order."""
    places: list[float] = []
    edge = top - (heights[0] / 2 if heights else 0.0)
    for middle, height in zip(wanted, heights, strict=True):
        places.append(max(middle, edge + height / 2))
        edge = places[-1] + height / 2
    edge = max(bottom, top + sum(heights))
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], edge - heights[index] / 2)
        edge = places[index] - heights[index] / 2
    return places


def _parts(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return the points of each run without gaps."""
    points = np.column_stack([x, y])
    runs = itertools.groupby(range(len(points)), key=lambda index: bool(np.isfinite(points[index]).all()))
    return [points[list(indices)] for is_finite, indices in runs if is_finite]


def _equal_units(
    x_ends: tuple[float, float], y_ends: tuple[float, float], width: float, height: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    unit = max((x_ends[1] - x_ends[0]) / width, (y_ends[1] - y_ends[0]) / height)
    (x, half_x), (y, half_y) = (sum(x_ends) / 2, unit * width / 2), (sum(y_ends) / 2, unit * height / 2)
    return (x - half_x, x + half_x), (y - half_y, y + half_y)


def _coloured(shares_YX: np.ndarray, colours: Sequence[str]) -> np.ndarray:
    """Return the RGB pixels of values between 0 and 1. Missing values are grey."""
    stops = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours])
    places = np.nan_to_num(shares_YX) * (len(stops) - 1)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    pixels = np.stack(channels, axis=-1).round().astype(np.uint8)
    pixels[~np.isfinite(shares_YX)] = 200
    return pixels


def _tick_text(value: float) -> str:
    return minus_signs(f"{value:.3g}")
