"""Write the fits of a sweep as a LaTeX table with booktabs rules, one row per curve."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import (
    adequate_power,
    headlines,
    preferred_models,
    undecided_text,
)
from depthrate.orchestrator.analysis.table_fit import TableFit
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.report.curve_groups import unique
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import curve_label, is_finite, is_null, is_number
from depthrate.tasks.fits.models import MODELS, POWER

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


def export_latex(data: ReportData, folder: Path) -> list[Path]:
    r"""Write fits.tex, and surfaces.tex with the fits in several variables, for \input, and return the paths.

    Raises:
        UsageError: A file cannot be written.
    """
    surfaces = [(surface.values, surface.fit) for surface in data.surfaces if surface.fit is not None]
    texts = {
        "fits.tex": fits_table(data) if data.fits else "",
        "surfaces.tex": "\n".join(
            f"% {latex(values.metric)} over {latex(values.x)} {latex(values.label())}\n{surface_tabular(found)}"
            + "".join(f"% {latex(text)}\n" for text in found.words())
            for values, found in surfaces
        ),
    }
    paths = [folder / name for name, text in texts.items() if text]
    for path in paths:
        write_output(path, texts[path.name])
    return paths


def surface_tabular(found: TableFit) -> str:
    r"""Return a `tabular` of the exponents of a fit in several variables. It needs \usepackage{booktabs}."""
    lines = [r"\begin{tabular}{llrl}", r"\toprule", r"form & variable & $a$ & 95\,\% \\", r"\midrule"]
    for row in found.rows():
        interval = _interval(row["ci_low"], row["ci_high"])
        lines.append(rf"{latex(row['form'])} & {latex(row['x'])} & ${row['exponent']:.3f}$ & {interval} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def fits_table(data: ReportData) -> str:
    r"""Return one LaTeX `table` per metric with the power law of each of its curves. It needs \usepackage{booktabs}."""
    of_metric = grouped(data.fits, curve_label)
    tables = [_metric_table(data.name, curves, is_only=len(of_metric) == 1) for curves in of_metric.values()]
    return "\n".join(["% needs \\usepackage{booktabs}", *tables])


def _metric_table(sweep: str, curves: Sequence[FittedCurve], *, is_only: bool) -> str:
    columns = _columns(curves)
    frame = pd.DataFrame({name: cells for name, cells in columns.items() if set(cells) - {NOTHING, ""}})
    texts = ("over", "preferred", *(latex(name) for curve in curves for name in curve.by))
    names = dict.fromkeys(name for curve in curves for name in preferred_models(curve).names if name != POWER.name)
    short = [f"{_short(name)}: {MODELS[name].words}." for name in names]
    metric = latex(curve_label(curves[0]))
    of_sweep = [sweep] if is_only else [sweep, curves[0].metric]
    notes = [f"{latex(line)}." for line in headlines(curves)]
    return str(
        frame.style.hide(axis="index").to_latex(
            hrules=True,
            column_format="".join("l" if name in texts else "r" for name in frame),
            position="t",
            position_float="centering",
            caption=" ".join([
                rf"Rates of {metric} in {latex(sweep)}: $y \approx c\,x^{{-a}}$, fitted to $\log y$ of every trial.",
                "Preferred: adequate, and not ruled out by AICc, or a power law that its test does not reject. "
                "None: no model is adequate.",
                *short, *notes, undecided_text(curves),
            ]).strip(),
            label="tab:" + re.sub(r"[^A-Za-z0-9]+", "-", "-".join(of_sweep)).strip("-").lower() + "-rates",
        )
    )  # fmt: skip


def _short(model: str) -> str:
    return model.removeprefix("power_").replace("_", " ")


def _columns(curves: Sequence[FittedCurve]) -> dict[str, list[str]]:
    """Return the cells by heading."""
    by = unique(name for curve in curves for name in curve.by)
    powers = [adequate_power(curve) for curve in curves]
    preferences = [preferred_models(curve) for curve in curves]
    return {
        "over": [latex(curve.x).replace("-", "$-$") for curve in curves],
        **{latex(name): [_value(curve.by[name]) if name in curve.by else "" for curve in curves] for name in by},
        "$a$": [NOTHING if power is None else _number(power.exponent, ".3f") for power in powers],
        r"95\,\% interval": [NOTHING if power is None else _interval(power.ci_low, power.ci_high) for power in powers],
        "$R^2$": [NOTHING if curve.power is None else _number(curve.power.r2, ".3f") for curve in curves],
        "trials": [str(len(curve.rows)) for curve in curves],
        "unconverged": [str(len(curve.unconverged)) if curve.judged else NOTHING for curve in curves],
        "preferred": [
            " or ".join(map(_short, preference.names))
            or (latex(preference.text) if curve.num_waiting else "none" if curve.fits else NOTHING)
            for curve, preference in zip(curves, preferences, strict=True)
        ],
    }


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


def _number(value: float | None, form: str = ".3g") -> str:
    """Format a number in math mode with a power of ten, or a dash if it is missing or not finite."""
    if not is_finite(value):
        return NOTHING
    lead, e, exponent = format(value, form).partition("e")
    return rf"${lead} \cdot 10^{{{int(exponent)}}}$" if e else f"${lead}$"


def _value(raw_value: Any) -> str:
    """Format a parameter's value: numbers with six digits, None as `none`."""
    if is_null(raw_value):
        return "none"
    if isinstance(raw_value, np.generic):
        raw_value = raw_value.item()
    if isinstance(raw_value, list | tuple):
        return f"({', '.join(map(_value, raw_value))})"
    return _number(raw_value, ".6g") if is_number(raw_value) else latex(raw_value)


def _interval(low: float | None, high: float | None) -> str:
    """Format the 95 % interval of a. Open ends are infinite."""
    if low is None and high is None:
        return NOTHING
    ends = [f"{end:.3f}" if is_finite(end) else r"\infty" for end in (low, high)]
    return f"$[{'' if is_finite(low) else '-'}{ends[0]}, {ends[1]}]$"
