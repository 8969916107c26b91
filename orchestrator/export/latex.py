"""Write the fits of a sweep as a LaTeX table with booktabs rules, one row per curve."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.fit_sheet import (
    Column,
    FitSheet,
    IntervalValue,
    Kind,
    Value,
    interval_text,
    number_text,
)
from depthrate.orchestrator.sheet.fit_words import RULE
from depthrate.orchestrator.sheet.markup import Span, spans
from depthrate.orchestrator.sheet.names import curve_label
from depthrate.orchestrator.sheet.value_sheets import surface_sheet

NOTHING = "---"
PLAIN = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\u00a0": "~",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    "’": "'",
}
PLAIN |= {sign: rf"\{sign}" for sign in "&%$#_{}"} | {"[": "{[}", "*": "{*}"}  # \\[ and \\* are other commands
MATHEMATICS = {"−": "-", "½": r"\tfrac{1}{2}", "·": r"\cdot", "×": r"\times", "±": r"\pm", "∞": r"\infty", "‖": r"\|"}
MATHEMATICS |= {"≤": r"\le", "≥": r"\ge", "≈": r"\approx", "∈": r"\in", "→": r"\to", "ℓ": r"\ell", "∝": r"\propto"}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$")
_ONLY_CAPITAL = ("GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA")
"""Capital letters with a LaTeX command. All other Greek capitals look like Latin letters."""
RATES = ("over", "exponent", "r2", "trials", "unconverged", "preferred")
"""Columns of the tables of rates, next to the groups."""


def export_latex(data: ReportData, folder: Path) -> list[Path]:
    r"""Write fits.tex, and surfaces.tex with the fits in several variables, for \input, and return the paths.

    Raises:
        UsageError: A file cannot be written.
    """
    sheets = [surface_sheet(surface) for surface in data.surfaces if surface.table is not None]
    texts = {
        "fits.tex": fits_table(data) if data.fits else "",
        "surfaces.tex": "\n".join(
            f"% {_markup(sheet.title)}\n{tabular(sheet)}" + "".join(f"% {_markup(text)}\n" for text in sheet.remarks)
            for sheet in sheets
        ),
    }
    paths = [folder / name for name, text in texts.items() if text]
    for path in paths:
        write_output(path, texts[path.name])
    return paths


def fits_table(data: ReportData) -> str:
    r"""Return one LaTeX `table` per metric with the power law of each of its curves. It needs \usepackage{booktabs}."""
    of_metric = grouped(data.fits, curve_label)
    tables = [_metric_table(data.name, curves, is_only=len(of_metric) == 1) for curves in of_metric.values()]
    return "\n".join(["% needs \\usepackage{booktabs}", *tables])


def _metric_table(sweep: str, curves: Sequence[FittedGroup], *, is_only: bool) -> str:
    sheet = rates_sheet(curves)
    title = f"{_markup(sheet.title)} in {latex(sweep)}."
    caption = [title, *map(_markup, [RULE, *sheet.notes, *(f"{text}." for text in sheet.headlines), *sheet.remarks])]
    of_sweep = [sweep] if is_only else [sweep, curves[0].metric]
    label = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(of_sweep)).strip("-").lower()
    by = [name for curve in curves for name in curve.by]
    lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{' '.join(caption)}}}", rf"\label{{tab:{label}-rates}}"]
    return "\n".join([*lines, tabular(sheet.pick((*by, *RATES))) + r"\end{table}", ""])


def tabular(sheet: FitSheet) -> str:
    r"""Return a sheet's rows as a `tabular`. An estimate has two columns. It needs \usepackage{booktabs}."""
    columns = sheet.used
    heads = [head for column in columns for head in _heads(column)]
    rows = [[cell for column in columns for cell in _cells(column, row.get(column.key))] for row in sheet.rows]
    kinds = "".join("rr" if column.kind is Kind.INTERVAL else "r" if column.is_number else "l" for column in columns)
    body = [" & ".join(cells) + r" \\" for cells in rows]
    return "\n".join([
        rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", " & ".join(heads) + r" \\", r"\midrule", *body, r"\bottomrule",
        r"\end{tabular}", "",
    ])  # fmt: skip


def _heads(column: Column) -> list[str]:
    if column.kind is not Kind.INTERVAL:
        return [_markup(column.heading)]
    return [_markup(column.heading.removesuffix(" [95 %]")), r"95\,\% interval"]


def _cells(column: Column, value: Value) -> list[str]:
    """Return a value's cell, or an estimate's two. A reason in place of an estimate is in the column of states."""
    if column.kind is not Kind.INTERVAL:
        return [_markup(column.text(value)) or NOTHING]
    if not isinstance(value, IntervalValue):
        return [NOTHING, NOTHING]
    interval = interval_text(value.low, value.high, column.form)
    return [f"${number_text(value.value, column.form)}$", _markup(interval) or NOTHING]


def _markup(text: str) -> str:
    """Return a sheet's text for LaTeX."""
    parts = []
    for (is_math, is_strong), run in groupby(spans(text), lambda span: (span.is_math, span.is_strong)):
        content = "".join(_mathematics(span) if is_math else latex(span.text) for span in run)
        part = f"${content}$" if is_math else content
        parts.append(rf"\textbf{{{part}}}" if is_strong else part)
    return "".join(parts)


def _mathematics(span: Span) -> str:
    """Return a part of a formula. Names of several letters are upright."""
    names = re.sub(r"[A-Za-z]\w{2,}", lambda name: rf"\mathrm{{{latex(name[0])}}}", span.text)
    text = "".join(MATHEMATICS.get(sign, rf"\{sign}" if sign in "%&#" else sign) for sign in names)
    return f"^{{{text}}}" if span.is_raised else text


def latex(text: object) -> str:
    """Escape a string for LaTeX. Unknown letters are left unchanged."""
    return "".join(_sign(sign) for sign in str(text).encode("utf-8", "replace").decode())


def _sign(sign: str) -> str:
    if sign in PLAIN:
        return PLAIN[sign]
    if sign.isascii():
        return sign if sign.isprintable() else " "
    if sign in MATHEMATICS:
        return f"${MATHEMATICS[sign]}$"
    kind, _, base = unicodedata.decomposition(sign).partition(" ")
    if kind in ("<super>", "<sub>"):
        raised = "".join(chr(int(code_point, 16)) for code_point in base.split())
        return f"${'^' if kind == '<super>' else '_'}{{{raised}}}$" if raised.isascii() else sign
    greek = _GREEK.match(unicodedata.name(sign, ""))
    if greek is None or (greek[1] == "CAPITAL" and greek[2] not in _ONLY_CAPITAL) or greek[2] == "OMICRON":
        return sign
    name = {"LAMDA": "LAMBDA", "FINAL": "SIGMA"}.get(greek[2], greek[2]).lower()
    return f"$\\{name if greek[1] == 'SMALL' else name.capitalize()}$"
