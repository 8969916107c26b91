"""Render the page's figures with matplotlib."""

from __future__ import annotations

import colorsys
import html
import io
import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.report.drawing.style import SCREEN, FigureStyle
from depthrate.orchestrator.report.plot import Plot, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Format -> metadata to omit, so that a file's bytes depend only on the plot."""
LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdashdot": (0, (8, 2, 1, 2))}
"""Plotly's name of a dash -> matplotlib's dash pattern."""
MARKERS = {"circle": "o", "circle-open": "o", "triangle-up": "^"}
"""Plotly's name of a marker -> matplotlib's name."""
PNG_DPI = 200
MAX_LEGEND = 60
"""Maximum number of characters in a legend line. A legend must not be wider than the figure."""
INSIDE_HEIGHT = 0.45
"""Maximum height of a legend inside the axes, as a share of their height."""
INSIDE_WIDTH = 0.8
"""Maximum width of a legend inside the axes, as a share of their width."""
BELOW_HEIGHT = 0.4
"""Height of a legend below the axes, as a share of the figure, above which the figure grows."""
MAX_COLUMNS = 6
_RAISED = re.compile(r"<sup>([^<]*)</sup>")
_NUMBER = re.compile(r"[−+\d.]+")
_TEXT = re.compile(r"<text>\s*((?:<tspan [^>]*>[^<]*</tspan>\s*)+)</text>")
_SPAN = re.compile(r'<tspan x="([^"]*)" y="([^"]*)" style="([^"]*)">([^<]*)</tspan>')
_FAMILY = re.compile(r"font-family: ('[^',;\"]*')")


def draw(plot: Plot, style: FigureStyle = SCREEN, formats: Sequence[str] = ("svg", "pdf")) -> dict[str, bytes]:
    """Render the plot in some of the `FORMATS`. The same plot always gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {}
    with rc_context(style.settings):
        figure = Figure(figsize=style.size_in, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for trace in plot.traces:
            _draw_trace(figure, axes, _inverted(trace) if style.is_dark else trace, style)
        _set_axes(axes, plot.layout, style)
        if any(trace["type"] == "heatmap" for trace in plot.traces):
            axes.grid(visible=False)
        else:
            _add_legend(figure, axes, plot.layout, style)
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.execute(figure)  # once for all files: with an engine, each file would render the figure twice more
        figure.set_layout_engine(None)
        for file_format in formats:
            sink = io.BytesIO()
            figure.savefig(sink, format=file_format, metadata=FORMATS[file_format], dpi=PNG_DPI)
            files[file_format] = sink.getvalue()
    return files | ({"svg": _merge_letters(files["svg"].decode()).encode()} if "svg" in files else {})


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
        text_colour = trace.get("textfont", {}).get("color", "#555555")
        font = {"fontsize": style.settings["legend.fontsize"], "color": text_colour, "ha": "left", "va": "bottom"}
        for text_x, text_y, text in zip(x, y, trace["text"], strict=True):
            axes.annotate(label(text, style), (text_x, text_y), (1, 1), textcoords="offset points", **font)


def _line_style(trace: Trace, style: FigureStyle) -> dict[str, Any]:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace["mode"]
    colour = line.get("color") or marker.get("color")
    options: dict[str, Any] = {"color": colour, "alpha": trace.get("opacity", marker.get("opacity"))}
    options["linestyle"] = LINE_STYLES[line.get("dash", "solid")] if "lines" in mode else "none"
    options["linewidth"] = line.get("width", 2) * style.points_per_pixel
    if "markers" in mode:
        symbol = marker.get("symbol", "circle")
        options |= {"marker": MARKERS[symbol], "markersize": marker.get("size", 6) * style.points_per_pixel}
        options["markerfacecolor"] = "none" if symbol.endswith("open") else marker.get("color", colour)
        options["markeredgewidth"] = 0.8 if symbol.endswith("open") else 0
    return options


def _set_axes(axes: Axes, layout: dict[str, Any], style: FigureStyle) -> None:
    from depthrate.orchestrator.report.drawing.ticks import set_ticks

    for name, set_scale, set_label, set_limits, axis in (
        ("xaxis", axes.set_xscale, axes.set_xlabel, axes.set_xlim, axes.xaxis),
        ("yaxis", axes.set_yscale, axes.set_ylabel, axes.set_ylim, axes.yaxis),
    ):
        options = layout[name]
        set_label(label(options["title"]["text"], style))
        is_log = options.get("type") == "log"
        if is_log:
            set_scale("log")
            if "range" in options:
                set_limits(*(10**end for end in options["range"]))
        set_ticks(axis, options, is_log=is_log)


def _add_legend(figure: Figure, axes: Axes, layout: dict[str, Any], style: FigureStyle) -> None:
    """Add the legend, in a paper inside the axes if there is space, and otherwise below them."""
    handles, names = axes.get_legend_handles_labels()
    if not names:
        return
    title = label(layout["legend"].get("title", {}).get("text", ""), style) or None
    names = [_wrapped(name) for name in names]
    options: dict[str, Any] = {"title": title, "title_fontsize": style.settings["legend.fontsize"]}
    if style.is_paper:
        legend = axes.legend(handles, names, loc="best", **options)
        figure.draw_without_rendering()
        size, space = legend.get_window_extent(), axes.get_window_extent()
        if size.height <= INSIDE_HEIGHT * space.height and size.width <= INSIDE_WIDTH * space.width:
            return
        legend.remove()
    for columns in range(min(len(names), MAX_COLUMNS), 0, -1):
        legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, **options)
        size = legend.get_window_extent()
        if columns == 1 or size.width <= figure.bbox.width:
            if size.height > BELOW_HEIGHT * figure.bbox.height:  # enlarge the figure so that the axes keep their height
                figure.set_figheight(figure.get_figheight() + size.height / figure.dpi)
            return
        legend.remove()


def _wrapped(name: str) -> str:
    """Wrap a name. Exponents have no spaces, so they are not split."""
    return "\n".join(textwrap.fill(line, MAX_LEGEND, break_long_words=False) for line in name.splitlines())


def _with_gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _inverted(value: Any) -> Any:
    """Invert the lightness of the colours of a trace, or of a part of it."""
    if isinstance(value, dict):
        return {name: _inverted(part) for name, part in value.items()}
    if isinstance(value, str) and re.fullmatch("#[0-9a-f]{6}", value):
        hue, lightness, saturation = colorsys.rgb_to_hls(*(int(value[at : at + 2], 16) / 255 for at in (1, 3, 5)))
        rgb = colorsys.hls_to_rgb(hue, 1 - lightness, saturation)
        return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)
    return value


def label(text: str, style: FigureStyle) -> str:
    """Convert a label. Exponents become superscripts, users' signs stay. In a paper, `weight_decay` becomes weight decay."""
    parts = []
    for index, part in enumerate(_RAISED.split(text.replace("<br>", "\n"))):
        text = html.unescape(part)
        if index % 2 and _NUMBER.fullmatch(text):
            parts.append(f"$^{{{text.replace('−', '-')}}}$")
            continue
        text = f"{'^' * (index % 2)}{text}".replace("$", r"\$")
        is_name = style.is_paper and not index % 2
        parts.append(re.sub(r"(?<=[^\W_])_(?=[^\W_])", " ", text) if is_name else text)
    return "".join(parts).strip()


def plain(text: str) -> str:
    """Convert a label for data files, without markup and with exponents after a caret."""
    return html.unescape(_RAISED.sub(r"^\1", text).replace("<br>", " ")).strip()


def _merge_letters(svg: str) -> str:
    """Merge adjacent letters of one style into one element, from left to right, because matplotlib writes single letters."""
    return _TEXT.sub(lambda match: f"<text>{_merged_spans(match[1], svg)}</text>", svg)


def _merged_spans(spans: str, svg: str) -> str:
    letters = [
        (float(x), float(y), style, letter)
        for places, y, style, text in _SPAN.findall(spans)
        for x, letter in zip(places.split(), html.unescape(text), strict=True)
    ]
    letters.sort(key=lambda letter: letter[0])
    runs, at = [], None
    for (y, style), run in itertools.groupby(letters, key=lambda letter: letter[1:3]):
        run_letters = list(run)
        text = html.escape("".join(letter for *_, letter in run_letters).replace("\u00a0", " "), quote=False)
        # only the first run has a position, so that runs do not overlap in a viewer without the font
        place = f'x="{run_letters[0][0]:g}" y="{y:g}"' if at is None else f'dy="{y - at:g}"'
        runs.append(f'<tspan {place} style="{_with_fallbacks(style, svg)}" xml:space="preserve">{text}</tspan>')
        at = y
    return "".join(runs)


def _with_fallbacks(style: str, svg: str) -> str:
    """Add the fallback fonts that other elements of the SVG list after the same font."""
    family = _FAMILY.search(style)
    fonts = family and re.search(f'font-family: ({re.escape(family[1])}, [^;"]*)', svg)
    return _FAMILY.sub(lambda _: f"font-family: {fonts[1]}", style) if fonts else style
