"""Define a section of the report: related figures with their heading and explanation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from depthrate.orchestrator.report.plot import Plot
from depthrate.orchestrator.report.report_data import ReportData


def _nothing(data: ReportData) -> str:
    return ""


@dataclass(frozen=True)
class ReportSection:
    """Figures of one module, which calls it SECTION."""

    place: int
    """Position on the page. Sections are sorted by it."""
    section: str
    """Heading on the page. Consecutive sections with one heading share it."""
    draw: Callable[[ReportData], list[Plot]]
    """Function that makes the figures, if any. `plots` caches them."""
    lead: Callable[[ReportData], str] = _nothing
    """Explanation of the figures, as HTML."""
    empty: str = ""
    """Text without figures. A section without content is omitted."""
    tables: Callable[[ReportData], str] = _nothing
    """Tables above the figures, as HTML."""

    def plots(self, data: ReportData) -> list[Plot]:
        """Return the figures, the same ones for the page and for files."""
        if self.draw not in data.plot_cache:
            data.plot_cache[self.draw] = self.draw(data)
        return data.plot_cache[self.draw]
