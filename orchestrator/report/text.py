"""Format the report's names and numbers, and escape users' strings."""

import math
import re
from typing import Any, TypeGuard

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.explorer.page import as_html
from depthrate.storage.files.controls import DIRECTIONS
from depthrate.tasks.fits.fit import Fit

_RAISED = str.maketrans("0123456789−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
MAX_LABEL = 40
"""Maximum number of characters of a user's string in a legend. Longer strings would push the axes aside."""
MAX_NAME = 300
"""Maximum number of characters of a user's string in running text."""


def formula_markup(formula: str) -> str:
    """Format a model's formula as HTML, with superscripts and minus signs."""
    braces_raised = re.sub(r"\^{(.*?)}", r"<sup>\1</sup>", escape(formula))
    return re.sub(r"\^(\w)", r"<sup>\1</sup>", braces_raised).replace("-", "−")


def interval_of(fit: Fit) -> tuple[float, float] | None:
    """Return the 95 % interval of the exponent, if the fit has one."""
    return (fit.ci_low, fit.ci_high) if is_finite(fit.ci_low) and is_finite(fit.ci_high) else None


def ends_text(ends: tuple[float, float] | None) -> str:
    """Format an interval, as in `[0.41, 0.52]`. Empty without one."""
    return f"[{', '.join(signed_text(end, '.2f') for end in ends)}]" if ends else ""


def x_text(x: str) -> str:
    """Format x as the base of a power, with arithmetic in parentheses and with minus signs."""
    return x if x.isidentifier() else f"({minus_signs(x)})"


def minus_signs(formula: str) -> str:
    """Replace hyphens by minus signs."""
    return formula.replace("-", "−")


def curve_label(curve: FittedCurve) -> str:
    """Name a curve's metric, with its layer, filter and fit options if they are not the default."""
    request = curve.asked
    layer = f", layer {minus_signs(text)}" if (text := request.layer_text) else ""
    return ", ".join([f"{curve.metric_label}{layer}", *request.options])


def group_text(by: dict[str, Any]) -> str:
    """Name a group, as in `weight_decay = 0.005`."""
    return ", ".join(f"{name} = {shorten(value_text(value))}" for name, value in by.items())


def group_phrase(by: dict[str, Any]) -> str:
    """Name a group in a sentence, as in `width 64, weight_decay 0.005`. Long values are cut."""
    return ", ".join(f"{shorten(name)} {shorten(value_text(value))}" for name, value in by.items())


def is_null(value: Any) -> bool:
    """Return whether a value is missing: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def value_text(value: Any) -> str:
    """Format a parameter's value. Floats have six digits."""
    if is_null(value):
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def number_text(value: float | None, digits: int = 3, *, zeros: bool = False) -> str:
    """Format a number with significant digits, or a dash if it is missing or not finite.

    Args:
        zeros: Whether to keep trailing zeros, for columns of numbers.
    """
    if not is_finite(value):
        return "—"
    lead, e, power = signed_text(value, f"{'#' if zeros and value else ''}.{digits}g").partition("e")
    lead = lead.removesuffix(".")
    return f"{lead}·10{signed_text(int(power.replace('−', '-')), 'd').translate(_RAISED)}" if e else lead


def three_decimals(value: float | None) -> str:
    """Format a number with three decimals, so that an exponent has as many decimals as its interval."""
    return signed_text(value, ".3f") if is_finite(value) else "—"


def signed_text(value: float, form: str) -> str:
    """Format a number with a minus sign instead of a hyphen. Zero after rounding has no sign."""
    text = minus_signs(format(value, form))
    return text if any(digit in text for digit in "123456789") else text.lstrip("+−")


def duration_text(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return whether the value is not None, infinite or NaN."""
    return value is not None and math.isfinite(value)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether the value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def p_text(p: float | None) -> str:
    """Format a p-value with three decimals, or as `< 0.001`."""
    return "—" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def escape(value: object) -> str:
    """Escape for HTML. Lone surrogates become question marks, since files cannot contain them.

    Marks that change the direction of text are shown as codes, since they would reverse the rest of a sentence.
    """
    return as_html(str(value).translate(DIRECTIONS))


def shorten(text: str, limit: int = MAX_LABEL) -> str:
    """Cut a string to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
