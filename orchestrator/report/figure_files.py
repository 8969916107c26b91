"""Figures for a paper: each as SVG and PDF, drawn by matplotlib from what the page draws, and its data as CSV."""

from __future__ import annotations

import colorsys
import csv
import html
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.report.plot import Plot, Trace
from depthrate.orchestrator.usage import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES = (4.6, 3.4)
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {"circle": "o", "circle-open": "o", "triangle-up": "^"}
MAX_LEGEND = 60
"""Characters; a legend wider than the figure would leave its axes no room."""
POINTS_PER_PIXEL = 0.75
STYLE: dict[Any, Any] = {"font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
STYLE |= {"pdf.fonttype": 42, "axes.grid": True, "grid.color": "#e8e8e8", "legend.frameon": False}
STYLE |= {"legend.fontsize": 8.0, "axes.axisbelow": True, "svg.hashsalt": "depthrate"}
DARK: dict[Any, Any] = {"savefig.transparent": True, "grid.color": "#333333"}
DARK |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#d6d6d6")
"""What a figure for a dark background has of its own; the colours of its traces are turned round as well."""


def export_figures(plots: Sequence[Plot], folder: Path, *, dark: bool = False) -> int:
    """Write figure-<number>-<title>.svg, .pdf and .csv for each plot; return how many.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, plot in enumerate(plots, 1):
        words = re.sub(r"[^a-z0-9]+", "-", html.unescape(plot.title).lower()).strip("-")
        path = folder / f"figure-{number:02d}-{words[:60]}"
        path.with_suffix(".csv").write_text(plot_csv(plot), encoding="utf-8")
        for ending, content in draw(plot, dark=dark).items():
            path.with_suffix(f".{ending}").write_bytes(content)
    return len(plots)


@dataclass(frozen=True)
class Picture:
    """One figure; a notebook shows it."""

    plot: Plot

    def _repr_svg_(self) -> str:
        return draw(self.plot)["svg"].decode()

    def __repr__(self) -> str:
        return f"<{html.unescape(self.plot.title)}; .save(path) writes .svg, .pdf or .csv>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as SVG, PDF or CSV, by the ending of the path.

        Raises:
            ValueError: the ending is another.
            OSError: it cannot be written.
        """
        ending = Path(path).suffix.removeprefix(".").lower()
        if ending not in ("svg", "pdf", "csv"):
            raise UsageError(f"{os.fspath(path)}: a figure is written as .svg, .pdf or .csv")
        content = plot_csv(self.plot).encode() if ending == "csv" else draw(self.plot)[ending]
        Path(path).write_bytes(content)


def plot_csv(plot: Plot) -> str:
    """Return what a plot draws as CSV: a row a point, with the number and the name of its trace; z of a heat map."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["trace", "name", "x", "y", "z"])
    for number, trace in enumerate(plot.traces):
        name = _plain(trace["name"])
        if trace["type"] == "heatmap":
            for y, row in zip(trace["y"], trace["z"], strict=True):
                writer.writerows([number, name, x, y, z] for x, z in zip(trace["x"], row, strict=True))
            continue
        points = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None and y is not None]
        writer.writerows([number, name, x, y, ""] for x, y in points)
    return sink.getvalue()


def draw(plot: Plot, *, dark: bool = False) -> dict[str, bytes]:
    """Return the plot as {svg, pdf}, on white or for a dark background; the same plot gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {}
    with rc_context(STYLE | DARK if dark else STYLE):
        figure = Figure(figsize=INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for trace in plot.traces:
            _draw_trace(figure, axes, _turned_round(trace) if dark else trace)
        _dress(axes, plot.layout, has_map=any(trace["type"] == "heatmap" for trace in plot.traces))
        for ending, no_date in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            sink = io.BytesIO()
            figure.savefig(sink, format=ending, metadata=no_date)
            files[ending] = sink.getvalue()
    return files


def _draw_trace(figure: Figure, axes: Axes, trace: Trace) -> None:
    if trace["type"] == "heatmap":
        values = [_with_gaps(row) for row in trace["z"]]
        colours = "viridis" if trace["colorscale"] == "Viridis" else "RdBu_r"
        image = axes.imshow(values, cmap=colours, vmin=trace["zmin"], vmax=trace["zmax"])
        figure.colorbar(image, ax=axes, label=_plain(trace["colorbar"]["title"]["text"]), shrink=0.85)
        return
    x, y = (_with_gaps(trace[name]) for name in ("x", "y"))
    label = _plain(trace["name"]) if trace["showlegend"] else None
    if trace.get("fill"):
        colour, alpha = _colour(trace["fillcolor"])
        axes.fill(x, y, facecolor=colour, alpha=alpha, linewidth=0, label=label)
        return
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace["mode"]
    colour = line.get("color") or marker.get("color")
    style: dict[str, Any] = {"color": colour, "label": label, "alpha": trace.get("opacity", marker.get("opacity"))}
    style["linestyle"] = DASHES[line.get("dash", "solid")] if "lines" in mode else "none"
    style["linewidth"] = line.get("width", 2) * POINTS_PER_PIXEL
    if "markers" in mode:
        symbol = marker.get("symbol", "circle")
        style |= {"marker": MARKERS[symbol], "markersize": marker.get("size", 6) * POINTS_PER_PIXEL}
        style["markerfacecolor"] = "none" if symbol.endswith("open") else marker.get("color", colour)
        style["markeredgewidth"] = 0.8 if symbol.endswith("open") else 0
    axes.plot(x, y, **style, clip_on=trace.get("cliponaxis", True))
    if "text" in mode:
        colour_of_text = trace.get("textfont", {}).get("color", "#555555")
        for place_x, place_y, text in zip(x, y, trace["text"], strict=True):
            axes.annotate(_plain(text), (place_x, place_y), fontsize=8, color=colour_of_text, va="center")


def _dress(axes: Axes, layout: dict[str, Any], *, has_map: bool) -> None:
    for name, set_scale, set_label, set_limits, axis in (
        ("xaxis", axes.set_xscale, axes.set_xlabel, axes.set_xlim, axes.xaxis),
        ("yaxis", axes.set_yscale, axes.set_ylabel, axes.set_ylim, axes.yaxis),
    ):
        wanted = layout[name]
        set_label(_plain(wanted["title"]["text"]))
        if wanted.get("type") == "log":
            set_scale("log")
            if "range" in wanted:
                set_limits(*(10**end for end in wanted["range"]))
        if "tickvals" in wanted:
            from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

            axis.set_major_locator(FixedLocator(wanted["tickvals"]))
            axis.set_major_formatter(FixedFormatter(wanted["ticktext"]))
            axis.set_minor_locator(NullLocator())
    if has_map:
        axes.grid(visible=False)
    elif axes.get_legend_handles_labels()[0]:
        title = _plain(layout["legend"].get("title", {}).get("text", "")) or None
        handles, labels = axes.get_legend_handles_labels()
        columns = 2 if max(map(len, labels)) < 30 else 1
        labels = [label if len(label) <= MAX_LEGEND else f"{label[:MAX_LEGEND]}…" for label in labels]
        axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, title=title)


def _with_gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _colour(rgba: str) -> tuple[tuple[float, ...], float]:
    *rgb, alpha = (float(part) for part in rgba.removeprefix("rgba(").removesuffix(")").split(","))
    return tuple(channel / 255 for channel in rgb), alpha


def _turned_round(value: Any) -> Any:
    """Return a trace, or a part of it, whose colours keep their hue and have dark for light."""
    if isinstance(value, dict):
        return {name: _turned_round(part) for name, part in value.items()}
    if isinstance(value, str) and re.fullmatch("#[0-9a-f]{6}", value):
        rgb = _with_lightness_turned([int(value[start : start + 2], 16) / 255 for start in (1, 3, 5)])
        return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)
    if isinstance(value, str) and value.startswith("rgba("):
        rgb, alpha = _colour(value)
        return f"rgba({','.join(f'{255 * channel:.0f}' for channel in _with_lightness_turned(rgb))},{alpha})"
    return value


def _with_lightness_turned(rgb: Sequence[float]) -> tuple[float, ...]:
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    return colorsys.hls_to_rgb(hue, 1 - lightness, saturation)


def _plain(text: str) -> str:
    """Turn plotly's markup back into text that matplotlib draws as it stands: no tags, no mathematics."""
    plain = re.sub(r"<sup>(.*?)</sup>", r"^\1", text).replace("<br>", " ")
    return html.unescape(plain).replace("$", r"\$").strip()
