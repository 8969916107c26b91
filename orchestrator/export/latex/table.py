"""Format the fits as a LaTeX table with booktabs rules, one row per curve."""

from __future__ import annotations

import re
from collections.abc import Sequence

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power, preferred_names
from depthrate.orchestrator.export.latex.numbers import NOTHING, interval, number, value
from depthrate.orchestrator.export.latex.text import latex
from depthrate.orchestrator.report.curve_groups import unique
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import curve_label
from depthrate.tasks.fits.models import MODELS


def table_label(data: ReportData) -> str:
    r"""Return the table's label, for \ref."""
    return f"tab:{re.sub(r'[^A-Za-z0-9]+', '-', data.name).strip('-').lower()}-rates"


def fits_table(data: ReportData) -> str:
    r"""Return a LaTeX `table` with every curve's power law. It needs \usepackage{booktabs}."""
    import pandas as pd

    columns = _columns(data.fits)
    frame = pd.DataFrame({name: cells for name, cells in columns.items() if set(cells) - {NOTHING, ""}})
    is_number = [name not in ("Metric", "over", "preferred model", *map(latex, data.group_names)) for name in frame]
    text = frame.style.hide(axis="index").to_latex(
        hrules=True,
        column_format="".join("r" if right else "l" for right in is_number),
        position="t",
        position_float="centering",
        caption=_caption(data),
        label=table_label(data),
    )
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def _columns(curves: Sequence[FittedCurve]) -> dict[str, list[str]]:
    """Return the cells by heading."""
    by = unique(name for curve in curves for name in curve.by)
    powers = [adequate_power(curve) for curve in curves]
    return {
        "Metric": [latex(curve_label(curve)) for curve in curves],
        "over": [latex(curve.x).replace("-", "$-$") for curve in curves],
        **{latex(name): [value(curve.by[name]) if name in curve.by else "" for curve in curves] for name in by},
        "$a$": [NOTHING if power is None else number(power.exponent, ".3f") for power in powers],
        r"95\,\% interval": [NOTHING if power is None else interval(power) for power in powers],
        "$R^2$": [NOTHING if curve.power is None else number(curve.power.r2, ".3f") for curve in curves],
        "trials": [str(len(curve.rows)) for curve in curves],
        "unconverged": [str(len(curve.unconverged)) if curve.judged else NOTHING for curve in curves],
        "preferred model": [_preferred(curve) for curve in curves],
    }


def _preferred(curve: FittedCurve) -> str:
    """Name the preferred model and an indistinguishable rival."""
    if not curve.fits:
        return NOTHING
    return " or ".join(MODELS[name].words for name in preferred_names(curve)) or "none"


def _caption(data: ReportData) -> str:
    return (
        rf"Rates of {latex(data.name)}: $y \approx c\,x^{{-a}}$, fitted to $\log y$ of every trial. "
        "Preferred model: by AICc and, over whole seeds, only if they reject the power law. None: no model fits."
    )
