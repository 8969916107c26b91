"""Render figures: facets for the page, and SVG, PDF and PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depthrate.orchestrator.report.drawing.layout import (
    Area,
    Image,
    Layout,
    Shape,
    Spots,
    Stroke,
    Text,
    layouts,
    legend_keys,
    legend_layout,
)
from depthrate.orchestrator.report.drawing.style import PAGE, POINTS_PER_INCH, SCREEN, FigureStyle
from depthrate.orchestrator.report.drawing.svg import DASHES, svg_element, svg_file
from depthrate.orchestrator.report.figure import Figure
from depthrate.orchestrator.report.text import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: dict[str, dict[str, None]] = {"svg": {}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Format -> metadata to omit, so that a file's bytes depend only on the figure."""
PNG_DPI = 200
MARKERS = {"dot": "o", "ring": "o", "up": "^", "down": "v"}
"""Symbol -> marker of matplotlib."""
GAP = 14.0
"""Distance between the facets of a file."""


def figure_html(figure: Figure, number: int | None = None) -> str:
    """Return the HTML of a figure: its legend, one SVG per facet, and the caption."""
    name = "" if number is None else f"<b>Figure {number}.</b> "
    caption = " ".join([f"{figure.title}.", *figure.notes])
    facets = zip(figure.facets, layouts(figure, PAGE, PAGE.width), strict=True)
    svgs = "".join(svg_element(layout, PAGE, ", ".join(filter(None, (figure.title, f.title)))) for f, layout in facets)
    legend = _legend_html(figure)
    kind = ' class="wide"' if len(figure.facets) > 1 else ""
    return f'<figure{kind}>{legend}<div class="facets">{svgs}</div><figcaption>{name}{escape(caption)}</figcaption></figure>'


def _legend_html(figure: Figure) -> str:
    keys = legend_keys(figure)
    if not keys:
        return ""
    samples = [legend_layout("", [key], PAGE, 360.0).shapes[:-1] for key in keys]
    entries = [
        f"<li>{svg_element(Layout(22 if key.symbol == 'line' else 12, 16, shapes), PAGE, '')}{escape(key.name)}</li>"
        for key, shapes in zip(keys, samples, strict=True)
    ]
    title = f"<li>{escape(figure.legend_title)}</li>" if figure.legend_title else ""
    return f'<ul class="legend">{title}{"".join(entries)}</ul>'


def draw(figure: Figure, style: FigureStyle = SCREEN, formats: Sequence[str] = ("svg", "pdf")) -> dict[str, bytes]:
    """Render a figure with its facets in rows, in some of the `FORMATS`. The same figure always gives the same bytes."""
    columns = min(len(figure.facets), style.columns)
    width = style.file_width or columns * style.width + (columns - 1) * GAP
    gap = GAP * style.scale
    facet_width = (width - (columns - 1) * gap) / columns
    legend = legend_layout(figure.legend_title, legend_keys(figure), style, width)
    parts, y = [(0.0, 0.0, legend)], legend.height
    facets = layouts(figure, style, facet_width)
    for row in (facets[start : start + columns] for start in range(0, len(facets), columns)):
        parts += [(index * (facet_width + gap), y, layout) for index, layout in enumerate(row)]
        y += max(layout.height for layout in row) + gap
    height = y - gap
    files = {"svg": svg_file(parts, width, height, style)} if "svg" in formats else {}
    others = [file_format for file_format in formats if file_format != "svg"]
    return files | (_draw_with_matplotlib(parts, width, height, style, others) if others else {})


def _draw_with_matplotlib(
    parts: Sequence[tuple[float, float, Layout]],
    width: float,
    height: float,
    style: FigureStyle,
    formats: Sequence[str],
) -> dict[str, bytes]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    fonts = {"font.family": "STIXGeneral" if style.is_paper else "sans-serif"}
    # TrueType fonts, as publishers require. No mathematics in users' text.
    settings = fonts | {"pdf.fonttype": 42, "text.parse_math": False, "savefig.transparent": style.is_transparent}
    files = {}
    with rc_context(settings):
        canvas = Canvas(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH), dpi=POINTS_PER_INCH)
        axes = canvas.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for x, y, layout in parts:
            for order, shape in enumerate(layout.shapes):
                _add_shape(axes, shape, x, y, order, style)
        axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
        for file_format in formats:
            sink = io.BytesIO()
            canvas.savefig(sink, format=file_format, metadata=FORMATS[file_format], dpi=PNG_DPI)
            files[file_format] = sink.getvalue()
    return files


def _add_shape(axes: Axes, shape: Shape, x: float, y: float, order: int, style: FigureStyle) -> None:
    offset = np.array([x, y])
    looks: dict[str, Any] = {"zorder": order, "clip_on": False}
    if isinstance(shape, Image):
        box = (x + shape.x, x + shape.x + shape.width, y + shape.y + shape.height, y + shape.y)
        axes.imshow(shape.pixels, extent=box, interpolation="nearest", zorder=order)
        return
    looks["color"] = _colour(shape.colour, style)
    if isinstance(shape, Text):
        align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        weight = "bold" if shape.is_bold else "normal"
        axes.text(x + shape.x, y + shape.y, shape.text, fontsize=shape.size, ha=align, fontweight=weight, **looks)
    elif isinstance(shape, Area):
        axes.fill(*(shape.points + offset).T, alpha=shape.opacity, linewidth=0, **looks)
    elif isinstance(shape, Stroke):
        dashes = [length * style.scale / shape.width for length in DASHES[shape.dash]]
        for points in shape.parts:
            line = {"linewidth": shape.width, "alpha": shape.opacity, "linestyle": (0, dashes) if dashes else "-"}
            axes.plot(*(points + offset).T, solid_capstyle="butt", **line, **looks)
    else:
        hole = "none" if style.is_transparent else _colour("page", style)
        edge = 0.0 if shape.symbol == "dot" else 1.3 * style.scale
        spots = {
            "marker": MARKERS[shape.symbol],
            "markersize": shape.size,
            "markeredgewidth": edge,
            "linestyle": "none",
        }
        face = {} if shape.symbol == "dot" else {"markerfacecolor": hole}
        axes.plot(*(shape.points + offset).T, alpha=shape.opacity, **spots, **face, **looks)


def _colour(name: str, style: FigureStyle) -> str:
    return name if name.startswith("#") or style.colours is None else style.colours[name]
