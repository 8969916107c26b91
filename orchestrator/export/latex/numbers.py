"""Format numbers and values as LaTeX."""

from __future__ import annotations

from typing import Any

import numpy as np

from depthrate.orchestrator.export.latex.text import latex
from depthrate.orchestrator.report.text import is_finite, is_null, is_number
from depthrate.tasks.fits.rate_fit import RateFit

NOTHING = "---"


def number(value: float | None, form: str = ".3g") -> str:
    """Format a number in math mode with a power of ten, or a dash if it is missing or not finite."""
    if not is_finite(value):
        return NOTHING
    lead, e, exponent = format(value, form).partition("e")
    return rf"${lead} \cdot 10^{{{int(exponent)}}}$" if e else f"${lead}$"


def value(raw_value: Any) -> str:
    """Format a parameter's value: numbers with six digits, None as `none`."""
    if is_null(raw_value):
        return "none"
    if isinstance(raw_value, np.generic):
        raw_value = raw_value.item()
    if isinstance(raw_value, list | tuple):
        return f"({', '.join(map(value, raw_value))})"
    return number(raw_value, ".6g") if is_number(raw_value) else latex(raw_value)


def interval(fit: RateFit, form: str = ".3f") -> str:
    """Format the 95 % interval of a. Open ends are infinite."""
    if fit.ci_low is None and fit.ci_high is None:
        return NOTHING
    low = format(fit.ci_low, form) if is_finite(fit.ci_low) else r"-\infty"
    high = format(fit.ci_high, form) if is_finite(fit.ci_high) else r"\infty"
    return f"$[{low}, {high}]$"
