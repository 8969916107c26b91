"""Render figures for the page and the explorer, and as SVG, PDF and PNG files with the facets in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.report.drawing.layout import draw_key, draw_legend, layouts, legend_keys
from depthrate.orchestrator.report.drawing.style import DARK, PAGE, SCREEN, FigureStyle
from depthrate.orchestrator.report.drawing.svg import SvgPen
from depthrate.orchestrator.report.figure import Figure
from depthrate.orchestrator.report.text import escape

if TYPE_CHECKING:
    from depthrate.orchestrator.report.drawing.matplotlib_pen import MatplotlibPen

FORMATS = ("svg", "pdf", "png")
GAP = 14.0
"""Distance between the facets of a file."""


def figure_html(figure: Figure, number: int | None = None) -> str:
    """Return the HTML of a figure: its legend, one SVG per facet, and the caption."""
    name = "" if number is None else f"<b>Figure {number}.</b> "
    caption = " ".join([f"{figure.title}.", *figure.notes])
    svgs = []
    for facet, layout in zip(figure.facets, layouts(figure, PAGE, PAGE.width), strict=True):
        layout.draw(pen := SvgPen(PAGE))
        svgs.append(pen.element(PAGE.width, layout.height, ", ".join(filter(None, (figure.title, facet.title)))))
    kind = ' class="wide"' if len(figure.facets) > 1 else ""
    return (
        f'<figure{kind}>{_legend_html(figure)}<div class="facets">{"".join(svgs)}</div>'
        f"<figcaption>{name}{escape(caption)}</figcaption></figure>"
    )


def _legend_html(figure: Figure) -> str:
    entries = [f"<li>{escape(figure.legend_title)}</li>"] if figure.legend_title else []
    for key in legend_keys(figure):
        width = draw_key(pen := SvgPen(PAGE), key, PAGE, 0, 10)
        entries.append(f"<li>{pen.element(width, 12, '')}{escape(key.name)}</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>' if entries else ""


def draw(figure: Figure, style: FigureStyle = SCREEN, formats: Sequence[str] = ("svg", "pdf")) -> dict[str, bytes]:
    """Render a figure with its facets in rows, in some of the `FORMATS`. The same figure always gives the same bytes."""
    files = {}
    if "svg" in formats:
        pen = SvgPen(style)
        files["svg"] = pen.file(*_draw_file(pen, figure, style))
    others = [name for name in formats if name != "svg"]
    if others:
        from depthrate.orchestrator.report.drawing.matplotlib_pen import MatplotlibPen

        printer = MatplotlibPen(style)
        files |= printer.files(*_draw_file(printer, figure, style), others)
    return files


def explorer_panel(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], figure: Figure | None
) -> dict[str, Any]:
    """Return a fit's table, sentences and figure for the explorer, which shows the figure as SVG in light and dark."""
    styles = [replace(style, file_width=1000.0) for style in (SCREEN, DARK)]
    pictures = [] if figure is None else [draw(figure, style, ["svg"])["svg"].decode() for style in styles]
    return {"title": title, "header": header, "rows": rows, "notes": notes, "pictures": pictures}


def _draw_file(pen: SvgPen | MatplotlibPen, figure: Figure, style: FigureStyle) -> tuple[float, float]:
    """Draw the legend and the facets, and return the width and the height."""
    columns, gap = min(len(figure.facets), style.columns), GAP * style.scale
    width = style.file_width or columns * style.width + (columns - 1) * gap
    facet_width = (width - (columns - 1) * gap) / columns
    facets = layouts(figure, style, facet_width)
    pen.move_to(0, 0)
    y = draw_legend(pen, figure.legend_title, legend_keys(figure), style, width)
    for start in range(0, len(facets), columns):
        row = facets[start : start + columns]
        for index, layout in enumerate(row):
            pen.move_to(index * (facet_width + gap), y)
            layout.draw(pen)
        y += max(layout.height for layout in row) + gap
    return width, y - gap
