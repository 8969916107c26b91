"""A fit in one short sentence, and in a few words each what speaks for and against it."""

from __future__ import annotations

from collections.abc import Sequence

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.report.words import (
    curve_label,
    escape,
    group_text,
    group_values,
    interval_of,
    is_finite,
    number_text,
    p_text,
    power_law,
    signed_text,
    x_text,
)
from depthrate.tasks.fits.models import MODELS, POWER
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS

CLEAR_AICC = 2.0
"""Below this difference of AICc two models count as not told apart (Burnham and Anderson 2002, section 2.6)."""
LEVEL = 0.05
"""Over whole seeds another model is preferred only where the power law is rejected at this level: AICc alone takes bends
that seeds share by chance for the curve's."""


MAX_SENTENCES = 3
"""Of one metric over one x; more groups than that stand in one sentence."""


def fit_sentences(curves: Sequence[FittedCurve]) -> list[str]:
    """Say all fitted curves, as HTML: a sentence each, or where a metric has many groups one for all of them."""
    groups: dict[tuple[str, str], list[FittedCurve]] = {}
    for curve in curves:
        groups.setdefault((curve_label(curve), curve.x), []).append(curve)
    said = [[groups_sentence(own)] if len(own) > MAX_SENTENCES else map(fit_sentence, own) for own in groups.values()]
    return [sentence for sentences in said for sentence in sentences]


def groups_sentence(curves: Sequence[FittedCurve]) -> str:
    """Say the curves of one metric over one x in a sentence, as HTML: what holds for all groups alike is said once."""
    parts = [_parts(curve) for curve in curves]
    shared = [own[0] if len(set(own)) == 1 else "" for own in zip(*(tail for _, tail in parts), strict=True)]
    said = []
    for curve, (rate, tail) in zip(curves, parts, strict=True):
        own = [text for text, of_all in zip(tail, shared, strict=True) if text and not of_all]
        said.append(", ".join([f"{escape(group_values(curve.by))} {rate}", *own]))
    all_alike = ", ".join(text for text in shared if text)
    names = escape(", ".join(curves[0].by))
    return (
        f"{escape(curve_label(curves[0]))} by {names}: {'; '.join(said)}{f'; each: {all_alike}' if all_alike else ''}."
    )


def _parts(curve: FittedCurve) -> tuple[str, tuple[str, str, str]]:
    """Return the rate, and beside it the interval, how many trials are unconverged and what was left out, as HTML."""
    power, excluded = power_law(curve), curve.excluded_text
    left_out = f"left out: {escape(excluded)}" if excluded else ""
    if power is None:
        return f"has no fit ({escape(curve.note or 'too few points')})", ("", "", left_out)
    doubt = f"<strong>{_unconverged_words(curve)}</strong>" if curve.unconverged else ""
    return _what(curve, power), (_interval_words(curve, power), doubt, left_out)


def fit_sentence(curve: FittedCurve) -> str:
    """Say one fitted curve in a sentence, as HTML: the preferred model first, unconverged trials beside it."""
    by = group_text(curve.by)
    start = escape(curve_label(curve)) + (f" at {escape(by)}" if by else "")
    power = power_law(curve)
    excluded = curve.excluded_text
    left_out = f" Left out: {escape(excluded)}." if excluded else ""
    if power is None:
        return f"{start}: no fit ({escape(curve.note or 'too few points')}).{left_out}"
    doubt = f" <strong>({_unconverged_words(curve)})</strong>" if curve.unconverged else ""
    return f"{start} {_what(curve, power)}, {_interval_words(curve, power)}{doubt}.{left_out}"


def preferred_model(curve: FittedCurve) -> RateFit | None:
    """Return the model that clearly beats the power law; null where none does.

    By AICc, and over whole seeds only if the means' distance from a power law is more than seeds bring about by chance.
    """
    power = power_law(curve)
    rival = None if power is None else best_rival(power, curve.fits)
    if power is None or rival is None or rival[1] >= -CLEAR_AICC:
        return None
    p = curve.p_lack_of_fit
    if power.n_seeds is not None and (p is None or p >= LEVEL):  # too few whole seeds reject nothing
        return None
    return rival[0]


def best_rival(power: RateFit, fits: Sequence[RateFit]) -> tuple[RateFit, float] | None:
    """Return the best model that is not the power law, and by how much its AICc is above the power law's."""
    known = [(fit, fit.aicc) for fit in fits if fit.model != POWER.name and is_finite(fit.aicc)]
    if not is_finite(power.aicc) or not known:
        return None
    best, aicc = min(known, key=lambda other: other[1])
    return best, aicc - power.aicc


def common_sentence(curve: FittedCurve) -> str:
    """Say whether the groups of a request share their exponent, as HTML; empty where that was not tested."""
    common = curve.common
    if common is None:
        return ""
    exponent, low, high = (signed_text(-value, ".2f") for value in (common.exponent, common.ci_high, common.ci_low))
    rate = f"{exponent} [{low}, {high}]"
    verdict = "do not share one exponent" if common.p_common < LEVEL else "are compatible with one exponent"
    p = escape(p_text(common.p_common)) if common.p_common < 0.001 else f"= {p_text(common.p_common)}"
    label = escape(curve_label(curve))
    return f"{label}: the {common.num_groups} groups {verdict} (F test, p {p}); fitted together {rate}."


def no_interval_text(power: RateFit) -> str:
    """Say why a fit has no interval."""
    if power.n_seeds is None:
        return "no interval (too few points)"
    seeds = "1 seed shows" if power.n_seeds == 1 else f"{power.n_seeds} seeds show"
    return f"no interval ({seeds} too little of how seeds differ; {MIN_SEEDS} are needed)"


def _what(curve: FittedCurve, power: RateFit) -> str:
    """The power law, behind the model that is preferred over it."""
    best, rate = preferred_model(curve), _rate_words(curve, power)
    if best is None:
        return rate
    model = MODELS[best.model]
    values = [f"exponent {signed_text(best.exponent, '.2f')}"]
    values += [f"{parameter.symbol} {number_text(best.parameter(parameter.name))}" for parameter in model.parameters]
    told = f" ({', '.join(values)})" if model.values_are_told else ""
    name = model.words if " " in model.words else f"{model.words} law"
    article = "an" if name[0] in "aeiou" else "a"
    return f"<strong>follows {article} {name}</strong>{told}; as a power law it {rate}"


def _rate_words(curve: FittedCurve, power: RateFit) -> str:
    """What is established of the power law: that it falls or grows only where the interval says so."""
    interval, base = interval_of(power), escape(x_text(curve.x))
    rate = f"<span class=nowrap>{base}<sup>{signed_text(-power.exponent, '.2f')}</sup></span>"
    plain = preferred_model(curve) is not None
    if interval is None:
        words = f"goes as {rate}"
    elif interval[0] <= 0 <= interval[1]:
        words = f"neither falls nor grows for certain, as {rate}"
    else:
        words = f"{'grows' if power.exponent < 0 else 'falls'} as {rate}"
    return words if plain else f"<strong>{words}</strong>"


def _interval_words(curve: FittedCurve, power: RateFit) -> str:
    """The interval is of the exponent's size, as the sentence says whether it falls or grows."""
    interval = interval_of(power)
    if interval is None:
        return no_interval_text(power)
    over = f" over {escape(curve.draws)}" if curve.draws else ""
    low, high = interval
    if low <= 0 <= high:
        return f"95 % interval [{signed_text(-high, '.2f')}, {signed_text(-low, '.2f')}] of the exponent{over}"
    low, high = sorted((abs(low), abs(high)))
    return f"95 % interval [{low:.2f}, {high:.2f}]{over}"


def rivals_words(curve: FittedCurve) -> str:
    """Compare the power law with the best other model by AICc; empty without a fit."""
    power = power_law(curve)
    if power is None:
        return ""
    rival = best_rival(power, curve.fits)
    if rival is None:
        return "none to compare with (too few different values or points)"
    best, delta = rival
    model, by = MODELS[best.model].words, f"ΔAICc {abs(delta):.1f}"
    if preferred_model(curve) is not None:
        return f"{model} preferred, {by}"
    if abs(delta) < CLEAR_AICC:
        return f"{model} not told apart, {by}"
    if delta > 0:
        return f"preferred over {model}, {by}"
    lower, p = f"{model} has the lower AICc ({by})", curve.p_lack_of_fit
    if p is None:
        return f"{lower}, but there are too few whole seeds to reject the power law"
    return f"{lower}, but over whole seeds the power law is not rejected (p = {p_text(p)})"


def _unconverged_words(curve: FittedCurve) -> str:
    """Say how many of a curve's trials are not converged."""
    if len(curve.unconverged) == len(curve.rows):
        return "all trials unconverged"
    return f"{len(curve.unconverged)} of {len(curve.rows)} trials unconverged"


def bound_words(curve: FittedCurve) -> str:
    """What the theorem's upper bound says of optima, one-sided, as HTML; empty where none is known or these are none."""
    check = curve.bound
    if check is None or not curve.is_stationary:
        return ""
    shape = f"{escape(x_text(curve.x))}<sup>{signed_text(-check.exponent, '.2f')}</sup>, up to a factor"
    low, high = (signed_text(-value, ".2f") for value in (check.ci_high, check.ci_low))
    ratio = f"over it the data have {signed_text(-check.ratio, '.2f')} [{low}, {high}]"
    verdict = check.verdict
    if verdict == "slower":
        verdict = "<strong>slower than the bound allows for ever</strong>"
    return f"{shape}; {ratio}: {verdict}"


def drift_words(curve: FittedCurve) -> str:
    """By how much training's last quarter moved the exponent, and could still; empty where that is not known."""
    if curve.drift is None:
        return ""
    moved = signed_text(-curve.drift.moved, "+.2f")
    return f"{moved} (as much again, at worst {curve.drift.could_move:.2f})"


def above_words(curve: FittedCurve) -> str:
    """How many trials have an objective above a shallower network's; empty where none has."""
    if not curve.above:
        return ""
    return f"{len(curve.above)} of {len(curve.rows)} trials, by up to {max(curve.above.values()):.1%}"


def range_words(curve: FittedCurve) -> str:
    """The cut-off, and where the exponent goes without the smallest x."""
    words = []
    if curve.cutoff is not None and not curve.cutoff.passed:
        words.append("no cut-off makes the means lie on a power law: nothing is cut")
    elif curve.cutoff is not None:
        words.append(f"from {x_text(curve.x)} = {curve.cutoff.x_min:g} on")
    if len(curve.sensitivity) > 1:
        whole, row, *_ = curve.sensitivity
        words.append(f"{signed_text(-row['exponent'], '.2f')} without {x_text(curve.x)} = {whole['x_min']:g}")
    return "; ".join(words)


def target_words(curve: FittedCurve) -> str:
    """Where the power law reaches the value that was asked for; empty where none was."""
    power, target = power_law(curve), curve.asked.target
    if power is None or target is None:
        return ""
    if power.x_at_target is None:
        return f"{number_text(target)} at no {x_text(curve.x)}"
    high = "∞" if power.x_at_high is None else number_text(power.x_at_high)
    interval = f" [{number_text(power.x_at_low)}, {high}]" if power.x_at_low is not None else ""
    return f"{number_text(target)} at {x_text(curve.x)} = {number_text(power.x_at_target)}{interval}"
