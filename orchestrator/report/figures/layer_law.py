"""Show the law of equi-separation: a table by depth, and the metric over the layers with the fitted lines."""

from collections.abc import Sequence
from typing import Any

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import by_request
from depthrate.orchestrator.report.curve_groups import Group, facets_of, split_facets
from depthrate.orchestrator.report.figure import Axis, EndLabel, Figure, Mark, mean_line
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.sheet_html import paragraphs, sheet_panel, sheet_table
from depthrate.orchestrator.sheet.markup import typeset
from depthrate.orchestrator.sheet.names import curve_label, value_text
from depthrate.orchestrator.sheet.value_sheets import layer_sheets


def layer_law_plots(data: ReportData) -> list[Figure]:
    """Plot the metric of each request over the layers, one line per depth."""
    return [figure for laws in by_request(data.layer_laws).values() if (figure := _plot(laws)) is not None]


def layer_law_panels(laws: Sequence[FittedGroup]) -> list[dict[str, Any]]:
    """Return the sheet and the figure of each request for the explorer."""
    return [
        sheet_panel(sheet, _plot(part))
        for sheet, part in zip(layer_sheets(laws), by_request(laws).values(), strict=True)
    ]


def _plot(laws: Sequence[FittedGroup]) -> Figure | None:
    laws = [law for law in laws if law.law is not None]
    if not laws:
        return None
    first = laws[0]
    groups = [((*map(value_text, law.by.values()), str(law.last_layer)), law) for law in laws]
    parts, omissions = split_facets([*first.by, "L"], groups, "groups")
    facets = facets_of(parts, Axis(title="Layer"), Axis(title=first.metric_label, is_log=True), _marks)
    notes = ["Dots: geometric means. Lines: D₀ρˡ, with ρ per layer.", *omissions]
    return Figure(f"{typeset(curve_label(first))} over the layers", facets, notes)


def _marks(group: Group[FittedGroup]) -> list[Mark]:
    found, name, colour = group.content.law, group.name, group.colour
    if found is None:
        return []
    x, means = list(found.means), list(found.means.values())
    line = [found.fit.prefactor * found.rho**layer for layer in x]
    return [
        mean_line(x, line, name, colour, is_named=False, symbol=""),
        mean_line(x, means, name, colour, is_named=False, width=0.0, size=4),
        EndLabel(x=x[-1], y=means[-1], text=name, detail=f"ρ = {found.rho:.3f}", colour=colour),
    ]


def layer_law_table(data: ReportData) -> str:
    """Return the sheet of each request."""
    return "".join(sheet_table(sheet) + paragraphs(sheet.remarks) for sheet in layer_sheets(data.layer_laws))


def _lead(data: ReportData) -> str:
    return (
        "The law of equi-separation (arXiv 2210.17020): log D falls by the same amount in each layer. r: correlation of the "
        "layer and the mean of log D. p: test of the line against one mean per layer. Small p: the line is an approximation."
    )


SECTION = ReportSection(20, "Law over layers", layer_law_plots, _lead, tables=layer_law_table)
