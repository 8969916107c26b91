"""Show the law of equi-separation: a table by depth, and the metric over the layers with the fitted lines."""

from collections.abc import Sequence

import numpy as np

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.layer_law import LayerLaw, decays_over_depth
from depthrate.orchestrator.report.curve_groups import Group, facets_of, split_facets
from depthrate.orchestrator.report.figure import Axis, EndLabel, Figure, Mark, Range, mean_line
from depthrate.orchestrator.report.html_table import Cell, grouped_table, number_cell, text_cell
from depthrate.orchestrator.report.html_table import Group as TitledRows
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import (
    curve_label,
    ends_text,
    escape,
    group_text,
    interval_of,
    number_text,
    p_text,
    signed_text,
    value_text,
)
from depthrate.tasks.fits.layer_law import LayerFit
from depthrate.tasks.fits.rate_fit import RateFit


def layer_law_plots(data: ReportData) -> list[Figure]:
    """Plot the metric of each request over the layers, one line per depth."""
    requests: dict[str, list[LayerLaw]] = {}
    for law in data.layer_laws:
        if law.fit is not None:
            requests.setdefault(str(law.values.asked), []).append(law)
    return [_plot(laws) for laws in requests.values()]


def _plot(laws: Sequence[LayerLaw]) -> Figure:
    label, names = curve_label(laws[0].values), [*laws[0].values.by, "L"]
    keys = [(*map(value_text, law.values.by.values()), str(law.depth)) for law in laws]
    groups, omissions = split_facets(names, list(zip(keys, laws, strict=True)), "groups")
    facets = facets_of(groups, Axis(title="Layer"), Axis(title=laws[0].values.metric_label, is_log=True), _marks)
    notes = ["Dots: geometric means. Bands: range over trials. Lines: D₀ρˡ, with ρ per layer.", *omissions]
    return Figure(f"{label} over the layers", facets, notes)


def _marks(group: Group[LayerLaw]) -> list[Mark]:
    law, name, colour = group.content, group.name, group.colour
    if law.fit is None:
        return []
    x, means = list(law.fit.means), list(law.fit.means.values())
    values_TL = np.array([list(row["layers"].values()) for row in law.values.rows])
    ends = values_TL.min(0).tolist(), values_TL.max(0).tolist()
    line = [law.fit.fit.prefactor * law.fit.rho**layer for layer in x]
    return [
        Range(x=x, low=ends[0], high=ends[1], colour=colour, name=name),
        mean_line(x, line, name, colour, is_named=False, symbol=""),
        mean_line(x, means, name, colour, is_named=False, width=0.0, size=4),
        EndLabel(x=x[-1], y=means[-1], text=name, detail=f"ρ = {law.fit.rho:.3f}", colour=colour),
    ]


def layer_law_table(data: ReportData) -> str:
    """Return rho, r, the test for a bend and -L log rho by depth, and the change of rho with depth."""
    if not data.layer_laws:
        return ""
    groups: dict[str, list[list[Cell]]] = {}
    for law in data.layer_laws:
        values, fit = law.values, law.fit
        texts = (str(law.depth or "—"), *(_numbers(fit, law.depth or 0) if fit else ("no fit", "", "", "")))
        cells = [*map(number_cell, texts), number_cell(str(len(values.rows)))]
        group = ", ".join(filter(None, [_name(values), values.draws]))
        groups.setdefault(group, []).append([*cells, text_cell(law.note or values.excluded_text)])
    header = ["L", "ρ [95 %]", "r", "p (straight)", "−L log ρ", "trials", "notes"]
    parts = [TitledRows(escape(title), rows) for title, rows in groups.items()]
    return grouped_table(header, parts) + "".join(map(_decay_text, decays_over_depth(data.layer_laws)))


def _name(values: FittedCurve) -> str:
    return ", ".join(filter(None, [curve_label(values), group_text(values.by)]))


def _numbers(fit: LayerFit, depth: int) -> tuple[str, ...]:
    ends = "" if (ends := fit.rho_interval) is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]"
    r = "—" if fit.r is None else signed_text(fit.r, ".4f")
    return f"{fit.rho:.3f}{ends}", r, p_text(fit.p_lack_of_fit), signed_text(depth * fit.fit.exponent, ".2f")


def _decay_text(found: tuple[LayerLaw, RateFit]) -> str:
    law, fit = found
    power = f"{number_text(fit.prefactor)} L<sup>{signed_text(-fit.exponent, '.2f')}</sup>"
    ends = f", 95 % interval of the exponent {ends_text(ends)}" if (ends := interval_of(fit)) else ""
    return f"<p>{escape(_name(law.values))}: −log ρ ≈ {power}{ends}.</p>"


def _lead(data: ReportData) -> str:
    return (
        "The law of equi-separation (arXiv 2210.17020): log D falls by the same amount in each layer. r: correlation of the "
        "layer and the mean of log D. p: test against a bend of log D over the layer. Small p: the line is an approximation."
    )


SECTION = ReportSection(20, "Law over layers", layer_law_plots, _lead, tables=layer_law_table)
