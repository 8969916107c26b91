"""A fit in one short sentence, and in a few words each what speaks for and against it."""

from __future__ import annotations

from collections.abc import Sequence

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import (
    CLEAR_AICC,
    LEVEL,
    adequate_power,
    best_rival,
    clear_rival,
    inadequacy,
    local_exponents_text,
    preferred_model,
)
from depthrate.orchestrator.report.text import (
    curve_label,
    escape,
    group_text,
    group_values,
    interval_of,
    minus_signs,
    number_text,
    p_text,
    signed_text,
    x_text,
)
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS

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
    power, excluded = curve.power, curve.excluded_text
    left_out = f"left out: {escape(excluded)}" if excluded else ""
    if power is None:
        return f"has no fit ({escape(curve.note or 'too few points')})", ("", "", left_out)
    doubt = f"<strong>{_unconverged_text(curve)}</strong>" if curve.unconverged else ""
    return _what(curve, power), (_interval_text(curve), doubt, left_out)


def fit_sentence(curve: FittedCurve) -> str:
    """Say one fitted curve in a sentence, as HTML: the preferred model first, unconverged trials beside it."""
    by = group_text(curve.by)
    start = escape(curve_label(curve)) + (f" at {escape(by)}" if by else "")
    power = curve.power
    excluded = curve.excluded_text
    left_out = f" Left out: {escape(excluded)}." if excluded else ""
    if power is None:
        return f"{start}: no fit ({escape(curve.note or 'too few points')}).{left_out}"
    doubt = f" <strong>({_unconverged_text(curve)})</strong>" if curve.unconverged else ""
    interval = _interval_text(curve)
    return f"{start} {_what(curve, power)}{f', {interval}' if interval else ''}{doubt}.{left_out}"


def common_sentence(curve: FittedCurve) -> str:
    """Say whether the groups of a request share their exponent, as HTML; empty where that was not tested."""
    common = curve.common
    if common is None:
        return ""
    exponent, low, high = (signed_text(value, ".2f") for value in (common.exponent, common.ci_low, common.ci_high))
    verdict = "do not share one exponent" if common.p_common < LEVEL else "are compatible with one exponent"
    p = escape(p_text(common.p_common)) if common.p_common < 0.001 else f"= {p_text(common.p_common)}"
    label = escape(curve_label(curve))
    return f"{label}: the {common.num_groups} groups {verdict} (F test, p {p}); fitted together a = {exponent} [{low}, {high}]."


def no_interval_text(power: RateFit) -> str:
    """Say why a fit has no interval."""
    if power.n_seeds is None:
        return "no interval (too few points)"
    seeds = "1 seed shows" if power.n_seeds == 1 else f"{power.n_seeds} seeds show"
    return f"no interval ({seeds} too little of how seeds differ; {MIN_SEEDS} are needed)"


def inadequacy_text(curve: FittedCurve, fit: RateFit) -> str:
    """Say why a model does not describe a curve, as HTML; empty where it does."""
    return escape(minus_signs(inadequacy(curve, fit).replace("R^2", "R²")))


def _what(curve: FittedCurve, power: RateFit) -> str:
    """The preferred model, and the power law behind another one."""
    best = preferred_model(curve)
    if best is None or best is power:
        return f"<strong>{_rate_text(curve, power)}</strong>"
    model = MODELS[best.model]
    values = [f"exponent {signed_text(best.exponent, '.2f')}"]
    values += [f"{parameter.symbol} {number_text(best.parameter(parameter.name))}" for parameter in model.parameters]
    told = f" ({', '.join(values)})" if model.values_are_told else ""
    name = model.words if " " in model.words else f"{model.words} law"
    article = "an" if name[0] in "aeiou" else "a"
    behind = "as a power law it " if adequate_power(curve) else "it "
    return f"<strong>follows {article} {name}</strong>{told}; {behind}{_rate_text(curve, power)}"


def _rate_text(curve: FittedCurve, power: RateFit) -> str:
    """What is established of the power law: that it fits, and falls or grows only where the interval says so."""
    if why := inadequacy_text(curve, power):
        local = minus_signs(local_exponents_text(curve))
        return f"follows no power law ({why})" + (
            f"; local exponents over {escape(x_text(curve.x))}: {local}" if local else ""
        )
    interval, base = interval_of(power), escape(x_text(curve.x))
    rate = f"<span class=nowrap>{base}<sup>{signed_text(-power.exponent, '.2f')}</sup></span>"
    if interval is None:
        return f"goes as {rate}"
    if interval[0] <= 0 <= interval[1]:
        return f"neither falls nor grows for certain, as {rate}"
    return f"{'grows' if power.exponent < 0 else 'falls'} as {rate}"


def _interval_text(curve: FittedCurve) -> str:
    """The interval of the power law's exponent a, where it is stated."""
    power = adequate_power(curve)
    if power is None:
        return ""
    interval = interval_of(power)
    if interval is None:
        return no_interval_text(power)
    over = f" over {escape(curve.draws)}" if curve.draws else ""
    of_a = "" if interval[0] > 0 else " of a"
    return f"95 % interval{of_a} [{', '.join(signed_text(end, '.2f') for end in interval)}]{over}"


def rivals_text(curve: FittedCurve) -> str:
    """Compare the power law with the best other model by AICc; empty without a fit."""
    rival = best_rival(curve)
    if rival is None:
        return "none to compare with (too few different values or points)" if curve.power else ""
    best, delta = rival
    model, by = MODELS[best.model].words, f"ΔAICc {abs(delta):.1f}"
    if preferred_model(curve) is best:
        return f"{model} preferred, {by}"
    if abs(delta) < CLEAR_AICC:
        return f"{model} not told apart, {by}"
    if delta > 0:
        return f"preferred over {model}, {by}"
    lower, p = f"{model} has the lower AICc ({by})", curve.p_lack_of_fit
    if clear_rival(curve) is best:
        return f"{lower}, but does not fit ({inadequacy_text(curve, best)})"
    if p is None:
        return f"{lower}, but there are too few whole seeds to reject the power law"
    return f"{lower}, but over whole seeds the power law is not rejected (p = {p_text(p)})"


def _unconverged_text(curve: FittedCurve) -> str:
    """Say how many of a curve's trials are not converged."""
    if len(curve.unconverged) == len(curve.rows):
        return "all trials unconverged"
    return f"{len(curve.unconverged)} of {len(curve.rows)} trials unconverged"


def bound_text(curve: FittedCurve) -> str:
    """What the theorem's upper bound says of optima, one-sided, as HTML; empty where none is known or these are none."""
    check = curve.bound
    if check is None or not curve.is_stationary:
        return ""
    shape = f"{escape(x_text(curve.x))}<sup>{signed_text(-check.exponent, '.2f')}</sup>, up to a factor"
    ratio, low, high = (signed_text(value, ".2f") for value in (check.ratio, check.ci_low, check.ci_high))
    verdict = check.verdict
    if verdict == "slower":
        verdict = "<strong>slower than the bound allows for ever</strong>"
    return f"{shape}; over it the data have a = {ratio} [{low}, {high}]: {verdict}"


def drift_text(curve: FittedCurve) -> str:
    """By how much training's last quarter moved the exponent, and could still; empty where that is not known."""
    if curve.drift is None:
        return ""
    moved = signed_text(curve.drift.moved, "+.2f")
    return f"{moved} (as much again, at worst {curve.drift.could_move:.2f})"


def above_text(curve: FittedCurve) -> str:
    """How many trials have an objective above a shallower network's; empty where none has."""
    if not curve.above:
        return ""
    return f"{len(curve.above)} of {len(curve.rows)} trials, by up to {max(curve.above.values()):.1%}"


def range_text(curve: FittedCurve) -> str:
    """The cut-off, and where the exponent goes without the smallest x."""
    words = []
    if curve.cutoff is not None and not curve.cutoff.passed:
        words.append("no cut-off makes the means lie on a power law: nothing is cut")
    elif curve.cutoff is not None:
        words.append(f"from {x_text(curve.x)} = {curve.cutoff.x_min:g} on")
    if len(curve.sensitivity) > 1:
        whole, row, *_ = curve.sensitivity
        words.append(f"a = {signed_text(row['exponent'], '.2f')} without {x_text(curve.x)} = {whole['x_min']:g}")
    return "; ".join(words)


def target_text(curve: FittedCurve) -> str:
    """Where the power law reaches the value that was asked for; empty where none was."""
    power, target = adequate_power(curve), curve.asked.target
    if power is None or target is None:
        return ""
    if power.x_at_target is None:
        return f"{number_text(target)} at no {x_text(curve.x)}"
    high = "∞" if power.x_at_high is None else number_text(power.x_at_high)
    interval = f" [{number_text(power.x_at_low)}, {high}]" if power.x_at_low is not None else ""
    return f"{number_text(target)} at {x_text(curve.x)} = {number_text(power.x_at_target)}{interval}"
