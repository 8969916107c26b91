"""Render fits in several variables: one table per group, the formulas, open questions, and a figure."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from depthrate.orchestrator.analysis.fitted_surface import FittedSurface
from depthrate.orchestrator.analysis.table_fit import TableFit, law_text
from depthrate.orchestrator.report.drawing.render import explorer_panel, figure_html
from depthrate.orchestrator.report.figure import Figure
from depthrate.orchestrator.report.figures.surfaces import surface_plot
from depthrate.orchestrator.report.html_table import Cell, number_cell, table, text_cell
from depthrate.orchestrator.report.text import ends_text, escape, minus_signs, p_text, signed_text

OPEN_FIGURES = 2
"""Number of figures that are not folded."""
_HEADER = ("form", "variable", "exponent a [95 %]", "p (a = ½)", "p (a = 1)", "")


def surface_section(surfaces: Sequence[FittedSurface], numbers: Iterator[int]) -> str:
    """Return the section, with figures numbered by `numbers`. Empty without requests in several variables."""
    parts = []
    for place, surface in enumerate(surfaces):
        content = f"<p>No fit: {escape(surface.note)}.</p>" if surface.fit is None else _content(surface.fit)
        figure = surface_figure(surface)
        html = "" if figure is None else figure_html(figure, next(numbers))
        if html and place >= OPEN_FIGURES:
            html = f"<details><summary>Figure</summary>{html}</details>"
        parts.append(f"<h3>{escape(_title(surface))}</h3>{content}{html}")
    return f"<section><h2>Several variables</h2>{''.join(parts)}</section>" if parts else ""


def surface_panel(surface: FittedSurface) -> dict[str, Any]:
    """Return the same for the explorer."""
    found = surface.fit
    rows = [] if found is None else _rows(found)
    notes = [f"no fit: {surface.note}"] if found is None else [*_laws(found), *found.words()]
    return explorer_panel(_title(surface), _HEADER, rows, notes, surface_figure(surface))


def surface_figure(surface: FittedSurface) -> Figure | None:
    """Return the figure of a fit. None without a fit, or if no line connects its values."""
    return None if surface.fit is None else surface_plot(surface.fit, _title(surface))


def _title(surface: FittedSurface) -> str:
    group = surface.values.label()
    return minus_signs(f"{surface.values.metric_label} over {surface.values.x}{f', {group}' if group else ''}")


def _rows(found: TableFit) -> list[list[str]]:
    rows = []
    for row in found.rows():
        ends = None if row["ci_low"] is None else (row["ci_low"], row["ci_high"])
        exponent = f"{signed_text(row['exponent'], '.2f')} {ends_text(ends)}".rstrip()
        tests = [p_text(row[name]) for name in ("p_half", "p_one")]
        verdict = "preferred" if row["preferred"] else "" if row["adequate"] else "inadequate"
        rows.append([row["form"], minus_signs(row["x"]), exponent, *tests, verdict])
    return rows


def _laws(found: TableFit) -> list[str]:
    return [f"{fit.form}: {found.y} = {minus_signs(law_text(fit))}" for fit in found.surfaces.fits]


def _content(found: TableFit) -> str:
    rows = []
    for form, variable, exponent, *tests, verdict in _rows(found):
        number, _, interval = exponent.partition(" ")
        bold = Cell(f"<strong>{escape(number)}</strong> {escape(interval)}")
        rows.append([text_cell(form), text_cell(variable), bold, *map(number_cell, tests), text_cell(verdict)])
    laws = [re.sub(r"\^(−?[\d.]+)", r"<sup>\1</sup>", escape(law)) for law in _laws(found)]
    words = [f"{escape(text[:1].upper() + text[1:])}." for text in found.words()]
    return table(_HEADER, rows) + "".join(f"<p class=note>{text}</p>" for text in [*laws, *words])
