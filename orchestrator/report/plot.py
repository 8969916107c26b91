"""Describe figures once, for plotly in the page and matplotlib in files (`report.drawing`).

A description has plotly's structure, restricted to features that `drawing.render_files` also renders: colours are `#rrggbb`
with a separate opacity.
"""

import html
import json
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.text import MAX_LABEL, escape, escape_for_plotly, is_finite, shorten
from depthrate.tasks.fits.proportions import wilson_interval

Trace: TypeAlias = dict[str, Any]

GREY = "#777777"
"""Colour of reference lines."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Dash styles of different lines, in this order."""
MAX_GROUPS = 12
PHONE_WIDTH = 352
"""Width of a figure on a phone, in pixels."""
KEY_WIDTH = 53
"""Width of the line sample before a name in the legend, including gaps, in pixels."""
LETTER_WIDTH = 7.2
"""Width of a letter in a legend, in pixels."""
LEGEND_LETTERS = 42
"""Number of letters in one row of a phone's legend."""
AXIS_LETTERS = 30
"""Maximum number of letters in a line of a vertical axis title, for the lowest figure."""
MAX_POINTS = 20_000
"""Maximum number of points in one figure."""
MAX_NUMBERED_COLUMNS = 8
"""Maximum number of columns of a heat map with numbers in its cells. With more columns the numbers would be too small."""
STEP_FORMATS = [
    {"dtickrange": ends, "value": f".{decimals}f"}
    for decimals in range(1, 7)
    for low, high in [(0.95 / 10**decimals, 9.4 / 10**decimals)]
    for ends in ([low, high], [f"L{low:g}", f"L{high:g}"])
]
"""Formats of evenly spaced ticks, including on log axes (plotly's L), with as many decimals as their step."""
VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#85cf3a")
"""matplotlib's viridis without the yellows that vanish on white."""


@dataclass(frozen=True)
class Axes:
    """Columns of a table to plot, with titles and scales."""

    x: str
    y: str
    x_title: str
    y_title: str
    x_log: bool
    y_log: bool


@dataclass(frozen=True)
class Plot:
    """One figure: plotly's traces and layout, and the notes below it."""

    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    notes: list[str]
    """Sentences without markup, escaped on rendering."""
    frames: list[dict[str, Any]] = field(default_factory=list)
    """Plotly's frames, one per position of the layout's slider. Empty if there is no animation."""

    @property
    def rows(self) -> int:
        """Number of rows below the axes on a phone, for the legend and a slider."""
        legend, rows, free = self.layout["legend"], 0, 0.0
        for lines, name_width in zip(self._names, self._widths, strict=True):
            width = name_width if legend["traceorder"] == "grouped" else max(self._widths)
            if width > free:
                rows, free = rows + len(lines), self._row_width
            free -= width
        return rows + ("title" in legend) + 3 * ("sliders" in self.layout)

    @property
    def _row_width(self) -> int:
        """Width of a legend row on a phone in pixels, which in plotly is the width of the axes."""
        return PHONE_WIDTH - self.layout["margin"]["l"] - self.layout["margin"]["r"]

    @cached_property
    def _names(self) -> list[list[str]]:
        """Names in the legend, split into lines."""
        names = [re.sub("<(?!br).*?>", "", trace["name"]) for trace in self.traces if trace["showlegend"]]
        return [html.unescape(name).split("<br>") for name in names]

    @cached_property
    def _widths(self) -> list[float]:
        """Widths of the legend's names with their line samples, in pixels."""
        return [KEY_WIDTH + LETTER_WIDTH * max(map(len, lines)) for lines in self._names]

    def page_layout(self) -> dict[str, Any]:
        """Return the layout for the page, with the legend's names in as many columns as fit on a phone."""
        columns = int(self._row_width // max(self._widths, default=self._row_width))
        if columns < 2 or self.layout["legend"]["traceorder"] == "grouped":  # leave the widths of the names unchanged
            return self.layout
        return self.layout | {"legend": self.layout["legend"] | {"entrywidth": self._row_width // columns - KEY_WIDTH}}


def make_trace(x: Iterable[Any], y: Iterable[Any], group: str, *, name: str | None = None, **style: Any) -> Trace:
    """Return a trace, by default a line. Named traces appear in the legend."""
    shared = {"type": "scatter", "x": _json_numbers(x), "y": _json_numbers(y), "mode": "lines", "hoverinfo": "skip"}
    return shared | {"legendgroup": group, "showlegend": name is not None, "name": name or ""} | style


def legend_entry(name: str, group: str, **line: Any) -> Trace:
    """Return a trace without points that adds a line to the legend. The line is grey by default."""
    return make_trace([None], [None], group, name=name, line={"color": GREY} | line)


def dots(
    x: Iterable[Any], y: Iterable[Any], group: str, colour: str, opacity: float, *, size: int = 5, **style: Any
) -> Trace:
    """Return points without lines. `style` contains options of their markers."""
    marker = {"color": colour, "size": size, "opacity": opacity} | style
    return make_trace(x, y, group, mode="markers", marker=marker)


def band(x: Sequence[Any], low: Sequence[Any], high: Sequence[Any], group: str, colour: str, opacity: float) -> Trace:
    """Return the area between two lines."""
    style: dict[str, Any] = {"fill": "toself", "fillcolor": colour, "opacity": opacity, "line": {"width": 0}}
    return make_trace([*x, *reversed(x)], [*high, *reversed(low)], group, **style)


def mean_line(x: Iterable[Any], y: Iterable[Any], group: str, name: str, colour: str, *, size: int = 7) -> Trace:
    """Return the strong line of a group, with markers and an entry in the legend."""
    marker, line = {"size": size, "color": colour}, {"color": colour, "width": 2}
    return make_trace(x, y, group, name=name, mode="lines+markers", line=line, marker=marker, hoverinfo="x+y")


def share_traces(tally: Sequence[tuple[Any, float, float]], group: str, name: str, colour: str) -> tuple[Trace, Trace]:
    """Return the shares over x as a line, and their 95 % Wilson intervals as bars.

    Args:
        tally: (x, number of observations with the property, number of observations), ascending in x.
    """
    ends = [wilson_interval(count, total) for _, count, total in tally]
    bars_x = [value for x, _, _ in tally for value in (x, x, None)]
    bars_y = [value for low, high in ends for value in (low, high, None)]
    return (
        make_trace(bars_x, bars_y, group, line={"color": colour, "width": 1}, opacity=0.6),
        mean_line([x for x, _, _ in tally], [count / total for _, count, total in tally], group, name, colour),
    )


def _json_numbers(values: Iterable[Any], digits: int = 9) -> list[float | None]:
    """Convert to JSON numbers. Nine digits are finer than a pixel, even on an axis from 1 to 1.00001."""
    return [float(f"{value:.{digits}g}") if is_finite(value) else None for value in values]


def make_layout(axes: Axes, y_values: Iterable[float], *, legend: Iterable[str] = ()) -> dict[str, Any]:
    """Return plotly's layout: axes with ticks, and the legend below them, titled with the names in `legend`."""
    x_scale = {"type": "log", "exponentformat": "power", "minorloglabels": "none"} if axes.x_log else {}
    y_scale = {"type": "log"} | _log_ticks(y_values) if axes.y_log else {}
    axis = {"showline": True, "linecolor": "#333333", "gridcolor": "#e8e8e8", "zeroline": False, "automargin": True}
    axis |= {"ticks": "outside", "ticklen": 4, "tickformatstops": STEP_FORMATS}
    # place the legend on the figure's bottom edge, as wide as the figure, so that it pushes the axes up
    keys = {"orientation": "h", "xref": "container", "yref": "container", "x": 0, "y": 0, "yanchor": "bottom"}
    keys |= {"traceorder": "normal", "maxheight": 1}  # by default plotly truncates it at half of the figure's height
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
    """Wrap a vertical axis title to the length of the axis."""
    return "<br>".join(map(escape_for_plotly, textwrap.wrap(shorten(title), AXIS_LETTERS)))


def _log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Return tick options: powers of ten, or plain numbers within two decades."""
    decades = float(np.ptp(np.log10(list(values))))
    if decades > 2:
        return {"exponentformat": "power", "minorloglabels": "none"}
    # by default plotly labels 1, 2, 3 ... 9. With this few ticks it labels 1, 2, 5.
    return {"tickformat": "~g", "nticks": max(3, int(decades / 0.31)) if decades > 0.9 else 5}


def value_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Return ticks at the values, or at 1, 2, 5 if there are many values, omitting ticks too close to the previous one."""
    unique = sorted({float(value) for value in values})
    low, high = unique[0], unique[-1]
    if len(unique) > 10:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        unique = [lead * 10.0**decade for decade in decades for lead in (1, 2, 5)]
        unique = [value for value in unique if low <= value <= high]
    ticks: list[float] = []
    for value in unique:
        if not ticks or math.log(value / ticks[-1]) > 0.06 * math.log(high / low):
            ticks.append(value)
    return {"tickvals": ticks, "ticktext": [f"{value:g}" for value in ticks]} if ticks else {}


def log_range(values: Iterable[float], padding: float) -> list[float]:
    """Return the axis range in decades, padded by a share on both sides."""
    logs = np.log10([value for value in values if value > 0])
    low, high = float(logs.min()), float(logs.max())
    extra = padding * (high - low) or 0.2
    return [low - extra, high + extra]


def viridis(num: int) -> list[str]:
    """Return colours of viridis from dark to light. A single colour is the blue of viridis."""
    if num == 1:
        return [VIRIDIS[2]]
    stops = np.array([_rgb(colour) for colour in VIRIDIS])
    places = np.linspace(0, len(stops) - 1, num)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return ["#" + "".join(f"{round(value):02x}" for value in rgb) for rgb in zip(*channels, strict=True)]


def _rgb(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def heat_map(
    values_YX: np.ndarray,
    label: str,
    low: float | None = None,
    *,
    high: float | None = None,
    colours: Any = "Viridis",
    tick_format: str = "",
    digits: int = 6,
    has_numbers: bool = True,
) -> Trace:
    """Return plotly's heat map of rows of values, with a colour bar.

    Args:
        low: Lower end of the colours. Default: the smallest value. `high` likewise.
        has_numbers: Whether the cells show numbers if there are few columns.
    """
    finite = values_YX[np.isfinite(values_YX)]
    z = [_json_numbers(row, digits) for row in values_YX]
    trace = {
        "type": "heatmap",
        "x": list(range(len(z[0]))),
        "y": list(range(len(z))),
        "z": z,
        "zmin": float(finite.min()) if low is None else low,
        "zmax": float(finite.max()) if high is None else high,
        "colorscale": colours,
        "showlegend": False,
        "name": "",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "thickness": 12,
            "tickformat": tick_format,
            "title": {"text": escape_for_plotly(label), "side": "right"},
        },
    }
    if has_numbers and len(z[0]) <= MAX_NUMBERED_COLUMNS:
        text = [["" if value is None else f"{value:.3g}" for value in row] for row in z]
        trace |= {"text": text, "texttemplate": "%{text}"}
    return trace


def mean_map(
    rows: pd.DataFrame, columns: tuple[str, str, str], titles: tuple[str, str], label: str, *, is_log: bool = False
) -> tuple[Trace, dict[str, Any]]:
    """Return the heat map of a column's mean over two other columns, and its layout. The largest y is on top.

    Args:
        columns: Names of x, y and the value in `rows`.
        titles: Titles of x and y.
        label: Title of the colour bar.
        is_log: Whether to show the logarithm to base ten, if all means are positive.
    """
    x, y, value = columns
    grid = rows.pivot_table(index=y, columns=x, values=value, aggfunc="mean").sort_index(ascending=False)
    is_log = is_log and bool((grid > 0).all().all())
    names = ([f"{place:g}" for place in places] for places in (grid.columns, grid.index))
    values = np.log10(grid.to_numpy()) if is_log else grid.to_numpy()
    return heat_map(values, f"log10 {label}" if is_log else label), map_layout(*titles, *names)


def map_layout(
    x_title: str, y_title: str, x_names: Sequence[str], y_names: Sequence[str], *, is_square: bool = False
) -> dict[str, Any]:
    """Return the layout of a heat map whose first row is on top."""
    layout = make_layout(Axes("x", "y", x_title, y_title, x_log=False, y_log=False), [])
    for axis, names in (("xaxis", x_names), ("yaxis", y_names)):
        layout[axis] |= {"showgrid": False, "tickvals": list(range(len(names))), "ticktext": list(names)}
    layout["xaxis"] |= {"constrain": "domain"}
    layout["yaxis"] |= {"autorange": "reversed"} | ({"scaleanchor": "x"} if is_square else {})
    return layout


def omission_notes(
    num_shown: int, num_groups: int, num_dropped: int = 0, *, log: bool = False, noun: str = "groups"
) -> list[str]:
    """Describe omitted groups and values."""
    notes = [f"{num_shown} of {num_groups} {noun} shown."] if num_shown < num_groups else []
    if num_dropped:
        reason = "zero, negative or not finite" if log else "not finite"
        notes.append(f"{num_dropped} {'value' if num_dropped == 1 else 'values'} omitted: {reason}.")
    return notes


def figure_html(plot: Plot, number: int) -> str:
    """Return the HTML of a figure: its element, the data for the page's script, and the caption."""
    caption = " ".join([f"{plot.title}.", *plot.notes])
    figure = {"data": plot.traces, "layout": plot.page_layout()} | ({"frames": plot.frames} if plot.frames else {})
    content = json_in_script(figure)
    style = f'style="--rows:{plot.rows}" role="img" aria-label="{escape(plot.title)}"'
    return (
        f'<figure><div class="plot" {style}></div><script type="application/json" class="plot-data">{content}</script>'
        f"<figcaption><b>Figure {number}.</b> {escape(caption)}"
        f'<span class="save"><button type="button" data-save="svg">SVG</button>'
        f'<button type="button" data-save="csv">CSV</button></span></figcaption></figure>'
    )


def json_in_script(value: Any) -> str:
    """Return JSON that cannot end a <script>: <, > and & are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda match: f"\\u{ord(match.group()):04x}", text)
