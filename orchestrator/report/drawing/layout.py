"""Draw a figure's marks, ticks and texts with a pen, in pixels with y downwards. The page and files have the same layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from depthrate.orchestrator.report.drawing.scale import Scale, padded, ticks
from depthrate.orchestrator.report.drawing.style import DIVERGING, SEQUENTIAL, FigureStyle
from depthrate.orchestrator.report.figure import (
    Axis,
    EndLabel,
    Facet,
    Figure,
    HeatMap,
    Key,
    Mark,
    Range,
    Series,
)
from depthrate.orchestrator.sheet.markup import minus_signs

if TYPE_CHECKING:
    from depthrate.orchestrator.report.drawing.matplotlib_pen import MatplotlibPen
    from depthrate.orchestrator.report.drawing.svg import SvgPen

    Pen: TypeAlias = SvgPen | MatplotlibPen

MAX_END_NAME = 18
"""Maximum number of characters of a name at a line's end. With longer names the figure has a legend."""
_NARROW = set("ijltfI.,:;|'![]() ")
_WIDE = set("mwMW—%")
MAX_LABEL_SHARE = 0.4
"""Maximum width of a label at a line's end, as a share of the facet."""
_COLOUR_BAR = 10.0
"""Width of a colour bar."""


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in a wide sans-serif font."""
    units = sum(0.36 if c in _NARROW else 0.95 if c in _WIDE else 0.7 if c.isupper() else 0.61 for c in text)
    return size * units


def _fitted(text: str, size: float, width: float) -> str:
    """Cut a text to a width."""
    needed = text_width(text, size)
    return text if needed <= width else f"{text[: max(1, int(len(text) * width / needed) - 1)]}…"


def legend_keys(figure: Figure) -> list[Key]:
    """Return the legend's entries. It omits names that are shown at the lines' ends."""
    named = [] if _has_end_names(figure) else _named(figure)
    keys = {mark.name: Key(mark.name, mark.colour, "line" if mark.width else "dot") for mark in named}
    return [*keys.values(), *figure.keys]


def _named(figure: Figure) -> list[Series]:
    return [mark for facet in figure.facets for mark in facet.marks if isinstance(mark, Series) and mark.is_named]


def _has_end_names(figure: Figure) -> bool:
    """Return whether lines are named at their ends: all names are short, and no other label is there."""
    named = _named(figure)
    has_labels = any(isinstance(mark, EndLabel) for facet in figure.facets for mark in facet.marks)
    is_distinct = len({mark.name for mark in named}) == len(named)
    return is_distinct and not has_labels and all(m.width and len(m.name) <= MAX_END_NAME for m in named)


def layouts(figure: Figure, style: FigureStyle, width: float) -> list[FacetLayout]:
    """Return the layout of each facet, of this width."""
    has_names = _has_end_names(figure)
    result = []
    for facet in figure.facets:
        first, facets = (figure.facets[0], figure.facets) if figure.has_common_axes else (facet, [facet])
        ends = _ends(first.x, facets, ("x",)), _ends(first.y, facets, ("y", "low", "high"))
        result.append(FacetLayout(style, width, facet, *ends, _end_labels(facet, has_names=has_names)))
    return result


def _ends(axis: Axis, facets: Iterable[Facet], names: Sequence[str]) -> tuple[float, float]:
    if axis.ends is not None:
        return axis.ends
    marks = [mark for facet in facets for mark in facet.marks if not isinstance(mark, HeatMap)]
    values = [np.atleast_1d(getattr(mark, name)) for mark in marks for name in names if hasattr(mark, name)]
    return padded(np.concatenate([*values, axis.ticks]), is_log=axis.is_log)


def _end_labels(facet: Facet, *, has_names: bool) -> list[EndLabel]:
    labels = [mark for mark in facet.marks if isinstance(mark, EndLabel)]
    for mark in facet.marks if has_names else ():
        if isinstance(mark, Series) and mark.is_named and (drawable := np.isfinite(mark.x) & np.isfinite(mark.y)).any():
            last = int(np.flatnonzero(drawable)[-1])
            labels.append(EndLabel(x=mark.x[last], y=mark.y[last], text=mark.name, colour=mark.colour))
    return labels


class FacetLayout:
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
        self._style, self._facet, self._width = style, facet, width
        size = style.text
        longest = MAX_LABEL_SHARE * width
        self._labels = [
            replace(label, text=_fitted(label.text, size, longest), detail=_fitted(label.detail, size, longest))
            for label in labels
        ]
        self._small = size - 1
        self.height = style.facet_height(width)
        heat = next((mark for mark in facet.marks if isinstance(mark, HeatMap)), None)
        top = size * (0.9 + 1.4 * bool(facet.title) + 1.4 * bool(facet.y.title or (heat and heat.label)))
        bottom = self.height - size * 3.1
        self._right = width - self._right_margin(heat)
        if facet.is_square and heat is None:
            x_ends, y_ends = _equal_units(x_ends, y_ends, 0.85 * self._right, bottom - top)
        self._y_ticks = ticks(facet.y, *y_ends)
        left = max((text_width(text, self._small) for _, text in self._y_ticks), default=0.0) + 0.9 * size
        if facet.is_square:
            rows, columns = (y_ends[1] - y_ends[0], x_ends[1] - x_ends[0]) if heat is None else heat.values.shape
            side = min((bottom - top) / rows, (self._right - left) / columns)
            bottom, self._right = top + side * rows, left + side * columns
            self.height = bottom + size * 3.1
        self._top, self._bottom, self._left = top, bottom, left
        self._x = Scale(*x_ends, left, self._right, facet.x.is_log)
        self._y = Scale(*y_ends, bottom, top, facet.y.is_log)

    def _right_margin(self, heat: HeatMap | None) -> float:
        size = self._style.text
        if heat is not None:
            names = (_number(heat.low), _number(heat.high))
            return _COLOUR_BAR + 1.4 * size + max(text_width(text, self._small) for text in names)
        widths = [text_width(text, size) for label in self._labels for text in (label.text, label.detail)]
        return max(widths) + 2.4 * size if widths else 1.4 * size

    def draw(self, pen: Pen) -> None:
        """Draw the axes, the marks and the labels."""
        self._draw_axes(pen)
        for mark in self._facet.marks:
            self._draw_mark(pen, mark)
        self._draw_labels(pen)

    def _draw_axes(self, pen: Pen) -> None:
        size, small, facet = self._style.text, self._small, self._facet
        x_ticks = self._separate(ticks(facet.x, self._x.low, self._x.high))
        x_places = self._x([value for value, _ in x_ticks])
        y_places = self._y([value for value, _ in self._y_ticks])
        frame = [(self._left, self._top), (self._left, self._bottom), (self._right, self._bottom)]
        strokes = [[(x, self._bottom), (x, self._bottom + 3)] for x in x_places]
        strokes += [[(self._left - 3, y), (self._left, y)] for y in y_places]
        if not any(isinstance(mark, HeatMap) for mark in facet.marks):
            pen.lines(map(np.array, (frame, *strokes)), "axis", 0.8 * max(self._style.scale, 0.6))
        for x, (_, text) in zip(x_places, x_ticks, strict=True):
            pen.text(x, self._bottom + 1.35 * size, text, small, "muted", "middle")
        for y, (_, text) in zip(y_places, self._y_ticks, strict=True):
            pen.text(self._left - 3 - 0.3 * size, y + 0.35 * small, text, small, "muted", "end")
        pen.text(
            self._right, self._bottom + 2.6 * size, _fitted(facet.x.title, small, self._right), small, "muted", "end"
        )
        above = self._top - 0.7 * size
        if facet.y.title:
            pen.text(0, above, _fitted(facet.y.title, small, self._width), small, "muted")
            above -= 1.4 * size
        if facet.title:
            pen.text(0, above, _fitted(facet.title, size, self._width), size, is_bold=True)

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

    def _draw_mark(self, pen: Pen, mark: Mark) -> None:
        scale = self._style.scale
        if isinstance(mark, HeatMap):
            self._draw_heat_map(pen, mark)
        elif isinstance(mark, Series):
            x, y = self._x(mark.x), self._y(mark.y)
            if mark.width:
                pen.lines(_parts(x, y), mark.colour, mark.width * scale, mark.dash, mark.opacity)
            if mark.symbol:
                points = np.column_stack([x, y])[np.isfinite(x) & np.isfinite(y)]
                pen.spots(points, mark.colour, mark.size * scale, mark.symbol, mark.opacity)
        elif isinstance(mark, Range):
            ends = np.array([self._x(mark.x), self._y(mark.low), self._y(mark.high)])
            x, low, high = ends[:, np.isfinite(ends).all(axis=0)]
            if mark.is_bars:
                bars = (np.array([(at, bottom), (at, top)]) for at, bottom, top in zip(x, low, high, strict=True))
                pen.lines(bars, mark.colour, 1.3 * scale, opacity=0.7)
            else:
                outline = np.vstack([np.column_stack([x, low]), np.column_stack([x, high])[::-1]])
                pen.area(outline, mark.colour, 0.15)

    def _draw_heat_map(self, pen: Pen, mark: HeatMap) -> None:
        size, small = self._style.text, self._small
        colours = DIVERGING if mark.is_diverging else SEQUENTIAL
        span = mark.high - mark.low
        shares = np.clip((mark.values - mark.low) / span if span else np.full(mark.values.shape, 0.5), 0, 1)
        pixels, height = _coloured(shares, colours), self._bottom - self._top
        pen.image(pixels, self._left, self._top, self._right - self._left, height)
        cell, texts = (self._right - self._left) / mark.values.shape[1], np.vectorize(_number)(mark.values)
        if mark.has_numbers and max(text_width(text, small) for text in texts.flat) < cell:
            luminance = pixels @ np.array([0.299, 0.587, 0.114])
            for (row, column), text in np.ndenumerate(texts):
                x, y = float(self._x([column])[0]), float(self._y([row])[0])
                colour = "#ffffff" if luminance[row, column] < 140 else "#1b1c1f"
                pen.text(x, y + 0.35 * small, text, small, colour, "middle")
        x, width = self._right + 0.7 * size, _COLOUR_BAR * self._style.scale
        pen.image(_coloured(np.linspace(1, 0, 64)[:, None], colours), x, self._top, width, height)
        for value, y in ((mark.high, self._top + small), (mark.low, self._bottom)):
            pen.text(x + width + 0.3 * size, y, _number(value), small, "muted")
        pen.text(self._right + self._right_margin(mark), self._top - 0.7 * size, mark.label, small, "muted", "end")

    def _draw_labels(self, pen: Pen) -> None:
        """Draw the texts to the right of the axes, moved apart, with lines to their points."""
        size, scale = self._style.text, self._style.scale
        places = [(float(self._y([label.y])[0]), float(self._x([label.x])[0]), label) for label in self._labels]
        places = sorted((place for place in places if np.isfinite(place[:2]).all()), key=lambda place: place[0])
        heights = [size * (2.3 if label.detail else 1.2) for _, _, label in places]
        middles = _spread_out([y for y, _, _ in places], heights, self._top, self._bottom)
        left = self._right + 0.9 * size
        for (y, x, label), middle, height in zip(places, middles, heights, strict=True):
            if abs(middle - y) > 0.4 * size or left - x > 1.5 * size:
                pen.lines([np.array([(x + 0.4 * size, y), (left - 0.3 * size, middle)])], "axis", 0.7 * scale)
            first = middle - height / 2 + 0.92 * size
            if label.symbol:
                pen.spots(np.array([(left + 0.2 * size, first - 0.35 * size)]), label.colour, 6 * scale, label.symbol)
            text_x = left + (0.8 if label.symbol else 0.1) * size
            pen.text(text_x, first, label.text, size, is_bold=bool(label.detail) and label.symbol == "dot")
            pen.text(text_x, first + 1.1 * size, label.detail, self._small, "muted")


def draw_legend(pen: Pen, title: str, keys: Sequence[Key], style: FigureStyle, width: float) -> float:
    """Draw the legend of a file in rows, and return its height."""
    size = style.text
    x, y = 0.0, 1.2 * size
    for key in [Key(title, symbol=""), *keys] if title else keys:
        needed = text_width(key.name, size) + 3.6 * size
        if x and x + needed > width:
            x, y = 0.0, y + 1.5 * size
        text_x = x + draw_key(pen, key, style, x, y)
        pen.text(text_x, y, key.name, size, "ink" if key.symbol else "muted")
        x += needed
    return y + 0.8 * size if keys else 0.0


def draw_key(pen: Pen, key: Key, style: FigureStyle, x: float, y: float) -> float:
    """Draw the sample of a key before a text with the baseline y, and return its width with the gap."""
    size, middle = style.text, y - 0.35 * style.text
    if key.symbol == "line":
        pen.lines([np.array([(x, middle), (x + 1.8 * size, middle)])], key.colour, 1.8 * style.scale, key.dash)
        return 2.2 * size
    if key.symbol:
        pen.spots(np.array([(x + 0.5 * size, middle)]), key.colour, 6 * style.scale, key.symbol)
    return 1.2 * size if key.symbol else 0.0


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


def _number(value: float) -> str:
    return minus_signs(f"{value:.3g}") if np.isfinite(value) else ""
