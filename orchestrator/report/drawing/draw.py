"""One figure as the page draws it, drawn by matplotlib."""

from __future__ import annotations

import colorsys
import io
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.report.drawing.axis_labels import label
from depthrate.orchestrator.report.drawing.style import SCREEN, FigureStyle
from depthrate.orchestrator.report.drawing.svg_text import with_words
from depthrate.orchestrator.report.plot import LINE_STYLES, MARKERS, Plot, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Ending -> what is left out of a file so that its bytes depend on the plot alone."""
PNG_DPI = 200
MAX_LEGEND = 60
"""Characters of a line; a legend wider than the figure would leave its axes no room."""
INSIDE_HEIGHT, INSIDE_WIDTH = 0.45, 0.8
"""Shares of the axes that a legend inside of them may take."""
BELOW_HEIGHT = 0.4
"""Share of the figure that a legend below the axes may take before the figure grows by it."""
MAX_COLUMNS = 6


def draw(plot: Plot, style: FigureStyle = SCREEN, endings: Sequence[str] = ("svg", "pdf")) -> dict[str, bytes]:
    """Return the plot as files of these kinds, by their endings (`FORMATS`); the same plot gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {}
    with rc_context(style.settings):
        figure = Figure(figsize=style.size_in, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for trace in plot.traces:
            _draw_trace(figure, axes, _turned_round(trace) if style.is_dark else trace, style)
        _dress(axes, plot.layout, style)
        if any(trace["type"] == "heatmap" for trace in plot.traces):
            axes.grid(visible=False)
        else:
            _add_legend(figure, axes, plot.layout, style)
        _lay_out(figure)
        for ending in endings:
            sink = io.BytesIO()
            figure.savefig(sink, format=ending, metadata=FORMATS[ending], dpi=PNG_DPI)
            files[ending] = sink.getvalue()
    return files | ({"svg": with_words(files["svg"].decode()).encode()} if "svg" in files else {})


def _lay_out(figure: Figure) -> None:
    """Give everything its place, once for both files: a figure with a layout engine is drawn twice more for each."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine(None)


def _draw_trace(figure: Figure, axes: Axes, trace: Trace, style: FigureStyle) -> None:
    if trace["type"] == "heatmap":
        values = [_with_gaps(row) for row in trace["z"]]
        colours = "viridis" if trace["colorscale"] == "Viridis" else "RdBu_r"
        image = axes.imshow(values, cmap=colours, vmin=trace["zmin"], vmax=trace["zmax"])
        figure.colorbar(image, ax=axes, label=label(trace["colorbar"]["title"]["text"], style), shrink=0.85)
        return
    x, y = (_with_gaps(trace[name]) for name in ("x", "y"))
    name = label(trace["name"], style) if trace["showlegend"] else None
    if trace.get("fill"):
        axes.fill(x, y, facecolor=trace["fillcolor"], alpha=trace["opacity"], linewidth=0, label=name)
        return
    axes.plot(x, y, **_line_style(trace, style), label=name, clip_on=trace.get("cliponaxis", True))
    if "text" in trace["mode"]:
        colour_of_text = trace.get("textfont", {}).get("color", "#555555")
        look = {"fontsize": style.settings["legend.fontsize"], "color": colour_of_text, "ha": "left", "va": "bottom"}
        for place_x, place_y, text in zip(x, y, trace["text"], strict=True):
            axes.annotate(label(text, style), (place_x, place_y), (1, 1), textcoords="offset points", **look)


def _line_style(trace: Trace, style: FigureStyle) -> dict[str, Any]:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace["mode"]
    colour = line.get("color") or marker.get("color")
    look: dict[str, Any] = {"color": colour, "alpha": trace.get("opacity", marker.get("opacity"))}
    look["linestyle"] = LINE_STYLES[line.get("dash", "solid")] if "lines" in mode else "none"
    look["linewidth"] = line.get("width", 2) * style.points_per_pixel
    if "markers" in mode:
        symbol = marker.get("symbol", "circle")
        look |= {"marker": MARKERS[symbol], "markersize": marker.get("size", 6) * style.points_per_pixel}
        look["markerfacecolor"] = "none" if symbol.endswith("open") else marker.get("color", colour)
        look["markeredgewidth"] = 0.8 if symbol.endswith("open") else 0
    return look


def _dress(axes: Axes, layout: dict[str, Any], style: FigureStyle) -> None:
    from depthrate.orchestrator.report.drawing.ticks import set_ticks

    for name, set_scale, set_label, set_limits, axis in (
        ("xaxis", axes.set_xscale, axes.set_xlabel, axes.set_xlim, axes.xaxis),
        ("yaxis", axes.set_yscale, axes.set_ylabel, axes.set_ylim, axes.yaxis),
    ):
        wanted = layout[name]
        set_label(label(wanted["title"]["text"], style))
        is_log = wanted.get("type") == "log"
        if is_log:
            set_scale("log")
            if "range" in wanted:
                set_limits(*(10**end for end in wanted["range"]))
        set_ticks(axis, wanted, is_log=is_log)


def _add_legend(figure: Figure, axes: Axes, layout: dict[str, Any], style: FigureStyle) -> None:
    """Name the lines: in a paper inside the axes if there is room, else below them."""
    handles, names = axes.get_legend_handles_labels()
    if not names:
        return
    title = label(layout["legend"].get("title", {}).get("text", ""), style) or None
    names = [_wrapped(name) for name in names]
    look: dict[str, Any] = {"title": title, "title_fontsize": style.settings["legend.fontsize"]}
    if style.is_paper:
        legend = axes.legend(handles, names, loc="best", **look)
        figure.draw_without_rendering()
        own, room = legend.get_window_extent(), axes.get_window_extent()
        if own.height <= INSIDE_HEIGHT * room.height and own.width <= INSIDE_WIDTH * room.width:
            return
        legend.remove()
    for columns in range(min(len(names), MAX_COLUMNS), 0, -1):
        legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, **look)
        own = legend.get_window_extent()
        if columns == 1 or own.width <= figure.bbox.width:
            if own.height > BELOW_HEIGHT * figure.bbox.height:  # the axes keep their height
                figure.set_figheight(figure.get_figheight() + own.height / figure.dpi)
            return
        legend.remove()


def _wrapped(name: str) -> str:
    """Return a name on as many lines as it needs; its exponents have no spaces, so that none is broken."""
    return "\n".join(textwrap.fill(line, MAX_LEGEND, break_long_words=False) for line in name.splitlines())


def _with_gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _turned_round(value: Any) -> Any:
    """Return a trace, or a part of it, whose colours keep their hue and have dark for light."""
    if isinstance(value, dict):
        return {name: _turned_round(part) for name, part in value.items()}
    if isinstance(value, str) and re.fullmatch("#[0-9a-f]{6}", value):
        rgb = _with_lightness_turned([int(value[start : start + 2], 16) / 255 for start in (1, 3, 5)])
        return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)
    return value


def _with_lightness_turned(rgb: Sequence[float]) -> tuple[float, ...]:
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    return colorsys.hls_to_rgb(hue, 1 - lightness, saturation)
