"""Format the report's names and numbers, and escape users' strings."""

import math
from typing import TypeGuard

from depthrate.orchestrator.explorer.page import as_html
from depthrate.orchestrator.sheet import fit_sheet
from depthrate.orchestrator.sheet.fit_sheet import interval_text, is_finite
from depthrate.orchestrator.sheet.markup import Span, minus_signs, spans, typeset
from depthrate.storage.files.controls import DIRECTIONS
from depthrate.tasks.fits.fit import Fit

MAX_NAME = 300
"""Maximum number of characters of a user's string in running text."""


def interval_of(fit: Fit) -> tuple[float, float] | None:
    """Return the 95 % interval of the exponent, if the fit has one."""
    return (fit.ci_low, fit.ci_high) if is_finite(fit.ci_low) and is_finite(fit.ci_high) else None


def ends_text(ends: tuple[float, float] | None) -> str:
    """Format an interval, as in `[0.41, 0.52]`. Empty without one."""
    return typeset(interval_text(*ends)) if ends else ""


def number_text(value: float | None, digits: int = 3, *, zeros: bool = False) -> str:
    """Format a number with significant digits, or a dash if it is missing or not finite.

    Args:
        zeros: Whether to keep trailing zeros, for columns of numbers.
    """
    return signed_text(value, f"{'#' if zeros and value else ''}.{digits}g") if is_finite(value) else "—"


def signed_text(value: float, form: str) -> str:
    """Format a number with a minus sign instead of a hyphen. Zero after rounding has no sign."""
    return typeset(f"${fit_sheet.number_text(value, form)}$")


def duration_text(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def is_number(value: object) -> TypeGuard[float]:
    """Return whether the value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def escape(value: object) -> str:
    """Escape for HTML. Lone surrogates become question marks, since files cannot contain them.

    Marks that change the direction of text are shown as codes, since they would reverse the rest of a sentence.
    """
    return as_html(str(value).translate(DIRECTIONS))


def markup(text: str) -> str:
    """Return a sheet's text as HTML, with superscripts and minus signs."""
    return "".join(map(_span, spans(text)))


def _span(span: Span) -> str:
    text = escape(minus_signs(span.text) if span.is_math else span.text)
    if span.is_raised:
        text = "²" if text == "2" else f"<sup>{text}</sup>"
    return f"<strong>{text}</strong>" if span.is_strong else text
