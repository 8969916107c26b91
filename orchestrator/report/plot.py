"""A figure as it is described once: the page draws it with plotly, files are drawn of it by matplotlib (`report.drawing`).

A description is plotly's, in what both understand: colours are `#rrggbb` with an opacity beside them, dashes and markers are
those named here.
"""

from __future__ import annotations

import html
import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from depthrate.orchestrator.report.text import MAX_LABEL, escape, escape_for_plotly, is_finite, shorten

Trace: TypeAlias = dict[str, Any]

GREY = "#777777"
"""Of reference lines."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of lines that are told apart by them, in this order."""
LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdashdot": (0, (8, 2, 1, 2))}
"""Every dash that a figure may have: plotly's name -> matplotlib's pattern."""
MARKERS = {"circle": "o", "circle-open": "o", "diamond": "D", "triangle-up": "^"}
"""Every marker that a figure may have: plotly's name -> matplotlib's."""
MAX_GROUPS = 12
PHONE_WIDTH, KEY_WIDTH, LETTER_WIDTH = 352, 53, 7.2
"""Pixels of a figure on a phone, of the line before a name in its legend with the gaps beside it, and of a letter there."""
LEGEND_LETTERS = 42
"""Letters of a name that fit into one row of a phone's legend."""
AXIS_LETTERS = 30
"""Letters of a title that stand beside the lowest figure's axis."""
MAX_POINTS = 20_000
"""Of one figure."""
STEP_FORMATS = [
    {"dtickrange": ends, "value": f".{decimals}f"}
    for decimals in range(1, 7)
    for low, high in [(0.95 / 10**decimals, 9.4 / 10**decimals)]
    for ends in ([low, high], [f"L{low:g}", f"L{high:g}"])
]
"""Ticks that are evenly far from each other, on a log axis too (plotly's L), have all the decimals of their step."""
VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#85cf3a")
"""matplotlib's viridis, cut before the yellows that vanish on white."""


@dataclass(frozen=True)
class Axes:
    """Which columns of a table to draw against each other, and how."""

    x: str
    y: str
    x_title: str
    y_title: str
    x_log: bool
    y_log: bool


@dataclass(frozen=True)
class Plot:
    """One figure: plotly's traces and layout, and what stands below them."""

    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    notes: list[str]
    """Plain sentences, escaped when drawn."""
    frames: list[dict[str, Any]] = field(default_factory=list)
    """Plotly's frames, one a place of the layout's slider; none: the figure stands still."""

    @property
    def rows(self) -> int:
        """How many rows stand below the axes on a phone: those of the legend and a slider."""
        legend, rows, room = self.layout["legend"], 0, 0.0
        for lines, width in zip(self._names, self._widths, strict=True):
            own = width if legend["traceorder"] == "grouped" else max(self._widths)
            if own > room:
                rows, room = rows + len(lines), self._room
            room -= own
        return rows + ("title" in legend) + 3 * ("sliders" in self.layout)

    @property
    def _room(self) -> int:
        """Pixels of a row of the legend on a phone: plotly gives it the width of the axes."""
        return PHONE_WIDTH - self.layout["margin"]["l"] - self.layout["margin"]["r"]

    @cached_property
    def _names(self) -> list[list[str]]:
        """The legend's names, each as lines of text."""
        names = [re.sub("<(?!br).*?>", "", trace["name"]) for trace in self.traces if trace["showlegend"]]
        return [html.unescape(name).split("<br>") for name in names]

    @cached_property
    def _widths(self) -> list[float]:
        """Pixels of the legend's names with their lines."""
        return [KEY_WIDTH + LETTER_WIDTH * max(map(len, lines)) for lines in self._names]

    def page_layout(self) -> dict[str, Any]:
        """Return the layout as a page draws it: the legend's names in columns, as many as fit on a phone."""
        columns = int(self._room // max(self._widths, default=self._room))
        if columns < 2 or self.layout["legend"]["traceorder"] == "grouped":  # each as wide as it is
            return self.layout
        return self.layout | {"legend": self.layout["legend"] | {"entrywidth": self._room // columns - KEY_WIDTH}}


def make_trace(x: Iterable[Any], y: Iterable[Any], group: str, *, name: str | None = None, **style: Any) -> Trace:
    """Return a line unless the style says otherwise; it is in the legend if it has a name."""
    _check_look(style)
    shared = {"type": "scatter", "x": _json_numbers(x), "y": _json_numbers(y), "mode": "lines", "hoverinfo": "skip"}
    return shared | {"legendgroup": group, "showlegend": name is not None, "name": name or ""} | style


def _check_look(style: Mapping[str, Any]) -> None:
    """Check that both renderers understand how something is drawn."""
    for name, value in style.items():
        if isinstance(value, Mapping):
            _check_look(value)
        elif name.endswith("color"):
            assert re.fullmatch("#[0-9a-f]{6}", value), f"{name} {value!r} is not #rrggbb"
        else:
            assert name != "dash" or value in LINE_STYLES, value
            assert name != "symbol" or value in MARKERS, value


def _json_numbers(values: Iterable[Any]) -> list[float | None]:
    """As JSON holds them; nine digits are finer than a pixel, on an axis from 1 to 1.00001 too."""
    return [float(f"{value:.9g}") if is_finite(value) else None for value in values]


def make_layout(axes: Axes, y_values: Iterable[float], *, legend: Iterable[str] = ()) -> dict[str, Any]:
    """Return plotly's layout: the axes with their ticks, and the legend below them with the names of what it lists."""
    x_scale = {"type": "log", "exponentformat": "power", "minorloglabels": "none"} if axes.x_log else {}
    y_scale = {"type": "log"} | _log_ticks(y_values) if axes.y_log else {}
    axis = {"showline": True, "linecolor": "#333333", "gridcolor": "#e8e8e8", "zeroline": False, "automargin": True}
    axis |= {"ticks": "outside", "ticklen": 4, "tickformatstops": STEP_FORMATS}
    # the legend stands on the figure's bottom edge, as wide as the figure, and pushes the axes up; each name in a place of
    # its own, not under the first of its group
    keys = {"orientation": "h", "xref": "container", "yref": "container", "x": 0, "y": 0, "yanchor": "bottom"}
    keys |= {"traceorder": "normal", "maxheight": 1}  # it has its rows; plotly would cut it at half of the figure
    if title := escape_for_plotly(", ".join(legend)):
        keys |= {"title": {"text": title, "side": "top", "font": {"size": 12}}}
    return {
        "xaxis": axis | x_scale | {"title": {"text": escape_for_plotly(axes.x_title), "standoff": 6}},
        "yaxis": axis | y_scale | {"title": {"text": _in_lines(axes.y_title), "standoff": 8}},
        "legend": keys | {"font": {"size": 12}, "tracegroupgap": 0},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": "#222222"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 56, "r": 14, "t": 28, "b": 44},
        "hoverlabel": {"namelength": MAX_LABEL},
    }


def _in_lines(title: str) -> str:
    """Return a title beside an axis in lines that are no longer than the axis."""
    return "<br>".join(map(escape_for_plotly, textwrap.wrap(shorten(title), AXIS_LETTERS)))


def _log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Powers of ten, or plain numbers within two decades."""
    decades = float(np.ptp(np.log10(list(values))))
    if decades > 2:
        return {"exponentformat": "power", "minorloglabels": "none"}
    # plotly would label 1, 2, 3 ... 9; told to make this few, it takes 1, 2, 5
    return {"tickformat": "~g", "nticks": max(3, int(decades / 0.31)) if decades > 0.9 else 5}


def value_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Put ticks at the values where these are few, else at 1, 2, 5; none too near to the one before."""
    unique = sorted({float(value) for value in values})
    low, high = unique[0], unique[-1]
    if len(unique) > 10:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        unique = [lead * 10.0**decade for decade in decades for lead in (1, 2, 5)]
        unique = [value for value in unique if low <= value <= high]
    kept: list[float] = []
    for value in unique:
        if not kept or math.log(value / kept[-1]) > 0.06 * math.log(high / low):
            kept.append(value)
    return {"tickvals": kept, "ticktext": [f"{value:g}" for value in kept]} if kept else {}


def log_range(values: Iterable[float], padding: float) -> list[float]:
    """Return the axis range in decades, with a share of padding on both sides."""
    logs = np.log10([value for value in values if value > 0])
    low, high = float(logs.min()), float(logs.max())
    extra = padding * (high - low) or 0.2
    return [low - extra, high + extra]


def viridis(num: int) -> list[str]:
    """Return viridis from dark to light; a single colour is the blue of its middle."""
    if num == 1:
        return [VIRIDIS[2]]
    stops = np.array([_rgb(colour) for colour in VIRIDIS])
    places = np.linspace(0, len(stops) - 1, num)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return ["#" + "".join(f"{round(value):02x}" for value in rgb) for rgb in zip(*channels, strict=True)]


def _rgb(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def omission_notes(num_shown: int, num_groups: int, num_dropped: int, *, log: bool) -> list[str]:
    """Say which groups and values are not drawn, and why."""
    notes = [f"{num_shown} of {num_groups} groups are drawn."] if num_shown < num_groups else []
    if num_dropped:
        why = "zero, negative or not finite and cannot stand on a log axis" if log else "not finite and not drawn"
        notes.append(f"{num_dropped} {'value is' if num_dropped == 1 else 'values are'} {why}.")
    return notes


def figure_html(plot: Plot, number: int) -> str:
    """Return the figure's place, its data for the page's script, and its caption."""
    caption = " ".join([f"{plot.title}.", *plot.notes])
    drawn = {"data": plot.traces, "layout": plot.page_layout()} | ({"frames": plot.frames} if plot.frames else {})
    content = json_in_script(drawn)
    style = f'style="--rows:{plot.rows}" role="img" aria-label="{escape(plot.title)}"'
    return (
        f'<figure><div class="plot" {style}></div><script type="application/json" class="plot-data">{content}</script>'
        f"<figcaption><b>Figure {number}.</b> {escape(caption)}"
        f'<span class="save"><button type="button" data-save="svg">SVG</button>'
        f'<button type="button" data-save="csv">CSV</button></span></figcaption></figure>'
    )


def json_in_script(value: Any) -> str:
    """Return JSON that cannot end a <script>: no <, no >, no &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda match: f"\\u{ord(match.group()):04x}", text)
