"""A theme of the report: figures that belong together, where they stand on the page and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from depthrate.orchestrator.report.plot import Plot
from depthrate.orchestrator.report.report_data import ReportData


def _nothing(data: ReportData) -> str:
    return ""


@dataclass(frozen=True)
class ReportSection:
    """Figures that one file draws; `figures.SECTIONS` lists them all."""

    section: str
    """Heading of the page under which they stand; themes that follow each other under one heading share it."""
    draw: Callable[[ReportData], list[Plot]]
    """Makes the figures, none where there is nothing to draw; `plots` makes them once."""
    lead: Callable[[ReportData], str] = _nothing
    """What is drawn and how to read it, as HTML."""
    empty: str = ""
    """What is said where the section has no figure; a section with nothing in it is left out."""
    tables: Callable[[ReportData], str] = _nothing
    """What stands above the figures, as HTML."""

    def plots(self, data: ReportData) -> list[Plot]:
        """Return the figures; the page and the files for papers show the same ones."""
        if self.draw not in data.plot_cache:
            data.plot_cache[self.draw] = self.draw(data)
        return data.plot_cache[self.draw]
