"""A fit's table, sentences and figure as data for the explorer, which shows them as text and as pictures."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from depthrate.orchestrator.report.drawing.render import draw
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN
from depthrate.orchestrator.report.figure import Figure

_STYLES = tuple(replace(style, file_width=1000.0) for style in (SCREEN, DARK))


def explorer_panel(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], figure: Figure | None
) -> dict[str, Any]:
    """Return the panel. The figure becomes an SVG in light and one in dark."""
    pictures = [] if figure is None else [draw(figure, style, ["svg"])["svg"].decode() for style in _STYLES]
    return {"title": title, "header": header, "rows": rows, "notes": notes, "pictures": pictures}
