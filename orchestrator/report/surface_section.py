"""Render fits in several variables: one table per group, the formulas, and what is undecided."""

import re
from collections.abc import Sequence

from depthrate.orchestrator.analysis.fitted_surface import FittedSurface
from depthrate.orchestrator.analysis.table_fit import TableFit, law_text
from depthrate.orchestrator.report.html_table import Cell, number_cell, table, text_cell
from depthrate.orchestrator.report.text import escape, minus_signs, p_text, signed_text


def surface_section(surfaces: Sequence[FittedSurface]) -> str:
    """Return the section. Empty without requests in several variables."""
    parts = []
    for surface in surfaces:
        group = surface.values.label()
        title = f"{surface.values.metric_label} over {surface.values.x}{f', {group}' if group else ''}"
        content = f"<p>No fit: {escape(surface.note)}.</p>" if surface.fit is None else _content(surface.fit)
        parts.append(f"<h3>{escape(minus_signs(title))}</h3>{content}")
    return f"<section><h2>Several variables</h2>{''.join(parts)}</section>" if parts else ""


def _content(found: TableFit) -> str:
    rows = []
    for row in found.rows():
        ends = [row["ci_low"], row["ci_high"]]
        interval = "" if None in ends else f" [{', '.join(signed_text(end, '.2f') for end in ends)}]"
        exponent = Cell(f"<strong>{signed_text(row['exponent'], '.2f')}</strong>{interval}")
        tests = [number_cell(p_text(row[name])) for name in ("p_half", "p_one")]
        verdict = "preferred" if row["preferred"] else "" if row["adequate"] else "inadequate"
        rows.append([text_cell(row["form"]), text_cell(minus_signs(row["x"])), exponent, *tests, text_cell(verdict)])
    header = ["form", "variable", "exponent a [95 %]", "p (a = ½)", "p (a = 1)", ""]
    laws = [escape(f"{fit.form}: {found.y} = {minus_signs(law_text(fit))}") for fit in found.surfaces.fits]
    laws = [re.sub(r"\^(−?[\d.]+)", r"<sup>\1</sup>", law) for law in laws]
    words = [f"{escape(text[:1].upper() + text[1:])}." for text in found.words()]
    return table(header, rows) + "".join(f"<p class=note>{text}</p>" for text in [*laws, *words])
