"""Numbers and values as LaTeX."""

from __future__ import annotations

from typing import Any

import numpy as np

from depthrate.orchestrator.export.latex.text import latex
from depthrate.orchestrator.report.text import is_finite, is_null, is_number
from depthrate.tasks.fits.rate_fit import RateFit

NOTHING = "---"


def number(value: float | None, form: str = ".3g") -> str:
    """Return a number as mathematics, with a power of ten in place of an e; a dash where it is missing or not finite."""
    if not is_finite(value):
        return NOTHING
    lead, e, exponent = format(value, form).partition("e")
    return rf"${lead} \cdot 10^{{{int(exponent)}}}$" if e else f"${lead}$"


def value(given: Any) -> str:
    """Return a parameter's value: six digits of a number, none for null."""
    if is_null(given):
        return "none"
    if isinstance(given, np.generic):
        given = given.item()
    if isinstance(given, list | tuple):
        return f"({', '.join(value(each) for each in given)})"
    return number(given, ".6g") if is_number(given) else latex(given)


def interval(fit: RateFit, form: str = ".3f") -> str:
    """Return the 95 % interval of a; an end that is left open is infinite."""
    if fit.ci_low is None and fit.ci_high is None:
        return NOTHING
    low = format(fit.ci_low, form) if is_finite(fit.ci_low) else r"-\infty"
    high = format(fit.ci_high, form) if is_finite(fit.ci_high) else r"\infty"
    return f"$[{low}, {high}]$"
