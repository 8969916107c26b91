"""The report's words: a fit in one sentence, names, numbers, and what users wrote, escaped."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from depthrate.orchestrator.aggregate import FittedCurve
from depthrate.tasks.fits.models import MODELS, POWER
from depthrate.tasks.fits.rate_fit import RateFit

CLEAR_AICC = 2.0
"""Below this difference of AICc two models count as not told apart (Burnham and Anderson 2002, section 2.6)."""
MAX_LABEL = 40
"""Characters of a user's text in a legend; longer ones would push the axes aside."""


def fit_sentence(curve: FittedCurve) -> str:
    """Say one fitted curve in words, as HTML: the power law first, then what speaks against it."""
    by = group_text(curve.by)
    start = escape(curve_label(curve)) + (f" at {escape(by)}" if by else "")
    power = power_law(curve)
    excluded = excluded_text(curve.excluded)
    left_out = f" Left out: {escape(excluded)}." if excluded else ""
    if power is None:
        return f"{start}: no fit ({escape(curve.note or 'too few points')}).{left_out}"
    trials = "trial" if power.n_points == 1 else "trials"
    parts = [f"{_rate_words(power, curve.x)}, {_interval_words(power)}"]
    parts += [f"R² {power.r2:.3f}"] if is_finite(power.r2) else []
    parts += [f"{power.n_points} {trials}"]
    sentence = f"{start} {', '.join(parts)}; {_preference(power, curve.fits)}."
    return f"{sentence}{_theory_words(power)}{_cut_words(curve)}{_target_words(curve)}{_doubt_words(curve)}{left_out}"


def common_sentence(curve: FittedCurve) -> str:
    """Say whether the groups of a request share their exponent, as HTML; empty where that was not tested."""
    common = curve.common
    if common is None:
        return ""
    exponent, low, high = (signed_text(-value, ".2f") for value in (common.exponent, common.ci_high, common.ci_low))
    rate = f"{exponent} [{low}, {high}]"
    verdict = "do not share one exponent" if common.p_common < 0.05 else "are compatible with one exponent"
    p = escape(p_text(common.p_common)) if common.p_common < 0.001 else f"= {p_text(common.p_common)}"
    label = escape(curve_label(curve))
    return f"{label}: the {common.num_groups} groups {verdict} (F test, p {p}); fitted together {rate}."


def _theory_words(power: RateFit) -> str:
    if power.p_half is None or power.p_one is None:
        return ""
    p_half, p_one = (escape(p_text(p)) if p < 0.001 else f"= {p_text(p)}" for p in (power.p_half, power.p_one))
    return f" Exponent ½: p {p_half}; exponent 1: p {p_one}."


def _cut_words(curve: FittedCurve) -> str:
    """The cut-off, and how far the exponent moves without the smallest x."""
    words = ""
    if curve.cutoff is not None and not curve.cutoff.passed:
        words = " No lower cut-off makes the means lie on a power law: nothing is cut."
    elif curve.cutoff is not None:
        words = f" From {escape(curve.x)} = {curve.cutoff.x_min:g} on."
    if len(curve.sensitivity) < 2:
        return words
    whole, row, *_ = curve.sensitivity
    return f"{words} Without {escape(curve.x)} = {whole['x_min']:g} the exponent is {signed_text(-row['exponent'], '.2f')}."


def _target_words(curve: FittedCurve) -> str:
    power, target = power_law(curve), curve.asked.target
    if power is None or target is None:
        return ""
    goal = f" The power law reaches {number_text(target)}"
    if power.x_at_target is None:
        return f"{goal} at no {escape(curve.x)}."
    high = "∞" if power.x_at_high is None else number_text(power.x_at_high)
    interval = f" [{number_text(power.x_at_low)}, {high}]" if power.x_at_low is not None else ""
    return f"{goal} at {escape(curve.x)} = {number_text(power.x_at_target)}{interval}."


def _doubt_words(curve: FittedCurve) -> str:
    count = len(curve.unconverged)
    return f" {count} of the trials {'is' if count == 1 else 'are'} unconverged." if count else ""


def _rate_words(power: RateFit, x: str) -> str:
    verb = "grows" if power.exponent < 0 else "falls"
    return f"<strong>{verb} as {escape(x)}<sup>{signed_text(-power.exponent, '.2f')}</sup></strong>"


def _interval_words(power: RateFit) -> str:
    """The interval is of the exponent's size, as the sentence says whether it falls or grows."""
    interval = interval_of(power)
    if interval is None:
        return "no interval (too few points)"
    low, high = interval
    if low <= 0 <= high:
        range_text = f"[{signed_text(-high, '.2f')}, {signed_text(-low, '.2f')}]"
        return f"95 % interval {range_text} of the exponent, which holds 0: no rate is established"
    low, high = sorted((abs(low), abs(high)))
    return f"95 % interval [{low:.2f}, {high:.2f}]"


def _preference(power: RateFit, fits: Sequence[RateFit]) -> str:
    """Compare the power law with the best other model by AICc."""
    rival = best_rival(power, fits)
    if rival is None:
        return "no other model to compare with (too few different values or points)"
    best, delta = rival
    model, by = MODELS[best.model], f"<span class=nowrap>ΔAICc {abs(delta):.1f}</span>"
    if abs(delta) < CLEAR_AICC:
        return f"power law and {model.words} are not told apart ({by})"
    if delta > 0:
        return f"power law preferred over {model.words} by {by}"
    values = [f"exponent {signed_text(best.exponent, '.2f')}"]
    values += [f"{parameter.symbol} {number_text(best.parameter(parameter.name))}" for parameter in model.parameters]
    told = f" ({', '.join(values)})" if model.values_are_told else ""
    return f"but {model.words}{told} is preferred over the power law by {by}"


def best_rival(power: RateFit, fits: Sequence[RateFit]) -> tuple[RateFit, float] | None:
    """Return the best model beside the power law, and how far its AICc is above the power law's."""
    others = [(fit, fit.aicc) for fit in fits if fit.model != POWER.name and is_finite(fit.aicc)]
    if not others or not is_finite(power.aicc):
        return None
    best, aicc = min(others, key=lambda other: other[1])
    return best, aicc - power.aicc


def formula_markup(formula: str) -> str:
    """Return a model's formula as HTML: exponents raised, minus signs in place of hyphens."""
    braces_raised = re.sub(r"\^{(.*?)}", r"<sup>\1</sup>", escape(formula))
    return re.sub(r"\^(\w)", r"<sup>\1</sup>", braces_raised).replace("-", "−")


def interval_of(fit: RateFit) -> tuple[float, float] | None:
    """Return the 95 % interval of the exponent, if the fit has one."""
    return (fit.ci_low, fit.ci_high) if is_finite(fit.ci_low) and is_finite(fit.ci_high) else None


def power_law(curve: FittedCurve) -> RateFit | None:
    """Return the curve's power law, if its exponent is finite."""
    return curve.power if curve.power and is_finite(curve.power.exponent) else None


def curve_label(curve: FittedCurve) -> str:
    """Name a curve's metric, and what of it is not as usual: its layer, its filter."""
    asked = curve.asked
    layer = "" if asked.layer is None else f", layer {signed_text(asked.layer, 'd')}"
    return f"{curve.metric_label}{layer}{f', where {asked.where}' if asked.where else ''}"


def group_text(by: dict[str, Any]) -> str:
    """Name a group, as in `weight_decay = 0.005`."""
    return ", ".join(f"{name} = {value_text(value)}" for name, value in by.items())


def excluded_text(excluded: dict[str, int]) -> str:
    """Say how many trials were left out and why, as in `2 diverged, 1 not positive`."""
    return ", ".join(f"{count} {reason}" for reason, count in excluded.items() if count)


def is_null(value: Any) -> bool:
    """Tell whether a value is null, or NaN as pandas writes null."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def value_text(value: Any) -> str:
    """Return a parameter's value as text; floats have six digits."""
    if is_null(value):
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def number_text(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits; a dash where it is missing or not finite."""
    return signed_text(value, f".{digits}g") if is_finite(value) else "—"


def signed_text(value: float, form: str) -> str:
    """Format a number with a minus sign in place of the hyphen."""
    return format(value, form).replace("-", "−")


def duration_text(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def is_finite(value: float | None) -> TypeGuard[float]:
    """Tell whether the value is there and neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether the value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def p_text(p: float | None) -> str:
    """Return a p-value: three digits after the point, or that it is smaller."""
    return "—" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def escape(value: object) -> str:
    """Escape for HTML; halves of surrogate pairs become question marks, as no file could hold them."""
    return html.escape(str(value).encode("utf-8", "replace").decode())


def escape_for_plotly(value: object) -> str:
    """Escape what plotly would read as a tag or an entity; plotly turns entities back into characters."""
    return html.escape(shorten(str(value)), quote=False)


def shorten(text: str) -> str:
    """Cut a text to MAX_LABEL characters."""
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"
