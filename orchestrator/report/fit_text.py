"""Describe a fit in one sentence, and the evidence for and against it in short phrases."""

from collections import Counter
from collections.abc import Sequence

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.convergence import UNTRAINED_ADVICE
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import (
    LEVEL,
    GroupState,
    adequate_power,
    followed_power,
    inadequacy,
    local_exponents_text,
    preferred_models,
)
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.text import (
    curve_label,
    ends_text,
    escape,
    group_phrase,
    group_text,
    interval_of,
    is_finite,
    minus_signs,
    number_text,
    p_text,
    signed_text,
    value_text,
    x_text,
)
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS

MAX_GROUPS_NAMED = 4
"""Maximum number of groups named in a sentence."""


def fit_requests(curves: Sequence[FittedCurve]) -> list[list[FittedCurve]]:
    """Return the curves of each metric over one x by the same parameters, in order."""
    return list(grouped(curves, lambda curve: (curve_label(curve), curve.x, *curve.by)).values())


def fit_sentences(curves: Sequence[FittedCurve]) -> list[str]:
    """Describe all fitted curves, as HTML: one sentence per metric and x."""
    return [groups_sentence(group) if len(group) > 1 else fit_sentence(group[0]) for group in fit_requests(curves)]


def groups_sentence(curves: Sequence[FittedCurve]) -> str:
    """Describe the groups of one metric over one x, as HTML: how many follow a power law, and with which exponents."""
    label, x = escape(curve_label(curves[0])), escape(x_text(curves[0].x))
    laws = sorted(
        ((curve, power) for curve in curves if (power := followed_power(curve))), key=lambda law: law[1].exponent
    )
    sentences = [f"{label} follows no power law over {x} in any of {len(curves)} groups."]
    if laws:
        count = f"<strong>{len(laws)} of {len(curves)}</strong> groups"
        ends = [_exponent_text(*law) for law in (laws if len(laws) == 1 else (laws[0], laws[-1]))]
        exponents = f"the exponent {ends[0]}" if len(laws) == 1 else f"exponents from {', to '.join(ends)}"
        sentences = [f"{label} {_verb([power for _, power in laws])} as a power of {x} in {count}, with {exponents}."]
    in_state = grouped(curves, lambda curve: preferred_models(curve).state)
    if others := in_state.get(GroupState.OTHER_FORM):
        sentences.append(f"Other models are preferred at {_groups_text(others, curves)}.")
    if laws and (failing := in_state.get(GroupState.NONE)):
        sentences.append(f"No power law fits at {_groups_text(failing, curves)}.")
    named = ((GroupState.FLAT, "Flat"), (GroupState.TOO_FEW, "Too few values"), (GroupState.NOT_YET, "Not yet"))
    for state, words in named:
        if part := in_state.get(state):
            reason = escape(preferred_models(part[0]).reason)
            sentences.append(f"{words} at {_groups_text(part, curves)} ({reason}).")
    excluded = sum((Counter(curve.excluded) for curve in curves), Counter[str]())
    del excluded["untrained"]  # `unconverged_sentence` counts them
    reasons = ", ".join(f"{count} {reason}" for reason, count in excluded.items())
    sentences += [f"Excluded: {escape(reasons)}."] if reasons else []
    return " ".join(sentences)


def _exponent_text(curve: FittedCurve, power: Fit) -> str:
    exponent = f"<strong>{signed_text(power.exponent, '.2f')}</strong>"
    return f"{exponent} {ends_text(interval_of(power))} at {escape(group_phrase(curve.by))}".replace("  ", " ")


def _groups_text(chosen: Sequence[FittedCurve], curves: Sequence[FittedCurve]) -> str:
    """Name some of the groups, as HTML: by one value if they are all groups with that value."""
    names, rest = [], list(chosen)
    for name in curves[0].by:
        for value in dict.fromkeys(value_text(curve.by[name]) for curve in rest):
            alike = [curve for curve in curves if value_text(curve.by[name]) == value]
            if len(alike) > 1 and all(curve in rest for curve in alike):
                names.append(group_phrase({name: value}))
                rest = [curve for curve in rest if curve not in alike]
    names += [group_phrase(curve.by) for curve in rest]
    more = [f"{len(names) - MAX_GROUPS_NAMED} other groups"] if len(names) > MAX_GROUPS_NAMED + 1 else []
    return escape("; ".join(names[:MAX_GROUPS_NAMED] + more if more else names))


def fit_sentence(curve: FittedCurve) -> str:
    """Describe one fitted curve in an HTML sentence, with the preferred model first."""
    by = group_text(curve.by)
    subject = escape(curve_label(curve)) + (f" at {escape(by)}" if by else "")
    power = curve.power
    excluded = curve.excluded_text
    exclusions = f" Excluded: {escape(excluded)}." if excluded else ""
    if curve.num_waiting:
        return f"{subject}: {escape(preferred_models(curve).text)}.{exclusions}"
    if power is None:
        return f"{subject}: no fit ({escape(curve.note or 'too few points')}).{exclusions}"
    interval = _interval_text(curve)
    return f"{subject} {_model_text(curve, power)}{f', {interval}' if interval else ''}.{exclusions}"


def unconverged_sentence(curves: Sequence[FittedCurve]) -> str:
    """Count the untrained and unconverged trials of all fits and suggest the next step, as HTML. Empty if all converged."""
    used = {row["trial_id"] for curve in curves if curve.fits for row in curve.rows}
    unconverged = used & frozenset().union(*(curve.unconverged for curve in curves))
    untrained = frozenset().union(*(curve.untrained for curve in curves))
    excluded = (
        f"<strong>Untrained: {counted(len(untrained), 'trial')}</strong>, at the loss of constant predictions, excluded. "
        f"{UNTRAINED_ADVICE} "
        if untrained
        else ""
    )
    if not unconverged:
        return excluded.strip()
    drop = ", or exclude them with <code>unconverged: drop</code> under <code>fit:</code>"
    return (
        f"{excluded}<strong>Unconverged: {len(unconverged)} of {counted(len(used), 'trial')}</strong>, so the fits describe "
        f"this training budget and not an optimum. Train longer{drop if len(unconverged) < len(used) else ''}."
    )


def common_sentence(curve: FittedCurve) -> str:
    """Describe the test for a common exponent of a request's groups, as HTML. Empty without a test."""
    common = curve.common
    if common is None:
        return ""
    exponent, ends = signed_text(common.exponent, ".2f"), ends_text((common.ci_low, common.ci_high))
    verdict = "do not share one exponent" if common.p_common < LEVEL else "are compatible with one exponent"
    p = escape(p_text(common.p_common)) if common.p_common < 0.001 else f"= {p_text(common.p_common)}"
    label = escape(curve_label(curve))
    return f"{label}: the {common.num_groups} groups {verdict} (F test, p {p}). Common fit: a = {exponent} {ends}."


def no_interval_text(power: Fit) -> str:
    """Return the reason for a missing interval."""
    if power.n_seeds is None:
        return "no interval (too few points)"
    return f"no interval ({counted(power.n_seeds, 'seed')}, at least {MIN_SEEDS} needed)"


def inadequacy_text(curve: FittedCurve, fit: Fit) -> str:
    """Return the reason why a model is inadequate, as HTML, or an empty string."""
    return escape(minus_signs(inadequacy(curve, fit).replace("R^2", "R²")))


def _model_text(curve: FittedCurve, power: Fit) -> str:
    """Describe the preferred models, with the power law first if it is one of them and last otherwise."""
    preference = preferred_models(curve)
    others = " or ".join(_law_text(fit) for fit in preference.models if fit is not power)
    rate = _rate_text(curve, power)
    if not others:
        return f"<strong>{rate}</strong>{preference.doubt}"
    if power in preference.models:
        return f"<strong>{rate}</strong> or follows {others}{preference.doubt}"
    power_law = "as a power law it " if adequate_power(curve) else "it "
    return f"<strong>follows {others}</strong>{preference.doubt}; {power_law}{rate}"


def _law_text(fit: Fit) -> str:
    """Name a model other than the power law, as in `a power law with floor (exponent 0.81, floor 0.03)`."""
    model = MODELS[fit.model]
    values = [f"exponent {signed_text(fit.exponent, '.2f')}"]
    values += [f"{parameter.symbol} {number_text(fit.parameter(parameter.name))}" for parameter in model.parameters]
    name = model.words if " " in model.words else f"{model.words} law"
    details = f" ({', '.join(values)})" if model.values_are_told else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{details}"


def _rate_text(curve: FittedCurve, power: Fit) -> str:
    """Describe the power law. It is said to fall or grow only if its interval excludes 0."""
    if why := inadequacy_text(curve, power):
        local = minus_signs(local_exponents_text(curve))
        return f"follows no power law ({why})" + (
            f"; local exponents over {escape(x_text(curve.x))}: {local}" if local else ""
        )
    rate = f"<span class=nowrap>{escape(x_text(curve.x))}<sup>{signed_text(-power.exponent, '.2f')}</sup></span>"
    interval = interval_of(power)
    if interval and interval[0] <= 0 <= interval[1]:
        return f"neither falls nor grows significantly, as {rate}"
    return f"{_verb([power])} as {rate}"


def _verb(powers: Sequence[Fit]) -> str:
    """Return `falls` or `grows` if the intervals of all exponents exclude 0 on the same side, otherwise `goes`."""
    intervals = list(map(interval_of, powers))
    if all(interval and interval[0] > 0 for interval in intervals):
        return "falls"
    return "grows" if all(interval and interval[1] < 0 for interval in intervals) else "goes"


def _interval_text(curve: FittedCurve) -> str:
    """Return the interval of an adequate power law's exponent a."""
    power = adequate_power(curve)
    if power is None:
        return ""
    interval = interval_of(power)
    if interval is None:
        return no_interval_text(power)
    over = f" over {escape(curve.draws)}" if curve.draws else ""
    of_a = "" if interval[0] > 0 else " of a"
    return f"95 % interval{of_a} {ends_text(interval)}{over}"


def rivals_text(curve: FittedCurve) -> str:
    """State the preferred models, the best other model by AICc and the test of the power law. Empty without a fit."""
    power = curve.power
    if power is None:
        return ""
    others = [fit for fit in curve.fits if fit is not power and is_finite(fit.aicc)]
    if not others or not is_finite(power.aicc):
        return "none (too few distinct values or points)"
    preference = preferred_models(curve)
    words = " or ".join(MODELS[name].words for name in preference.names)
    verdict = f"preferred: {words or 'none'}{preference.doubt}"
    best = min(others, key=lambda fit: fit.aicc or 0.0)
    why = inadequacy_text(curve, best)
    parts = [
        verdict,
        f"{MODELS[best.model].words}: ΔAICc {signed_text((best.aicc or 0.0) - (power.aicc or 0.0), '+.1f')}",
    ]
    parts[1] += f", does not fit ({why})" if why else ""
    parts += [] if power.p_lack_of_fit is None else [f"power law: p = {p_text(power.p_lack_of_fit)}"]
    return "; ".join(parts)


def bound_text(curve: FittedCurve) -> str:
    """Compare the metric with the theorem's upper bound on optima (one-sided), as HTML. Empty without a bound or optima."""
    check = curve.bound
    if check is None or not curve.is_stationary:
        return ""
    shape = f"{escape(x_text(curve.x))}<sup>{signed_text(-check.exponent, '.2f')}</sup>, up to a factor"
    ratio, ends = signed_text(check.ratio, ".2f"), ends_text((check.ci_low, check.ci_high))
    verdict = check.verdict
    if verdict == "slower":
        verdict = "<strong>slower than the bound allows</strong>"
    return f"{shape}. Ratio to the bound: a = {ratio} {ends}, {verdict}"


def drift_text(curve: FittedCurve) -> str:
    """Return the change of the exponent over the last quarter of training, and its worst case. Empty if unknown."""
    if curve.drift is None:
        return ""
    moved = signed_text(curve.drift.moved, "+.2f")
    return f"{moved} (at most {curve.drift.could_move:.2f} more)"


def above_text(curve: FittedCurve) -> str:
    """Count the trials with an objective above a shallower network's. Empty for 0."""
    if not curve.above:
        return ""
    return f"{len(curve.above)} of {len(curve.rows)} trials, by up to {max(curve.above.values()):.1%}"


def range_text(curve: FittedCurve) -> str:
    """Describe the cut-off, and the exponents without the smallest x and over the three largest x."""
    parts = [] if curve.asked.x_min is None else [f"from {x_text(curve.x)} = {curve.asked.x_min:g}"]
    if len(curve.sensitivity) > 1:
        whole, row, *_ = curve.sensitivity
        parts.append(f"a = {signed_text(row['exponent'], '.2f')} without {x_text(curve.x)} = {whole['x_min']:g}")
    if len(curve.sensitivity) > 2:
        last = curve.sensitivity[-1]
        ends = (last["ci_low"], last["ci_high"])
        interval = f" {ends_text(ends)}" if all(map(is_finite, ends)) else ""
        parts.append(f"a = {signed_text(last['exponent'], '.2f')}{interval} from {x_text(curve.x)} = {last['x_min']:g}")
    return "; ".join(parts)


def target_text(curve: FittedCurve) -> str:
    """Return the x at which the power law reaches the requested value. Empty without a request."""
    power, target = adequate_power(curve), curve.asked.target
    if power is None or target is None:
        return ""
    if power.x_at_target is None:
        return f"{number_text(target)} at no {x_text(curve.x)}"
    high = "∞" if power.x_at_high is None else number_text(power.x_at_high)
    interval = f" [{number_text(power.x_at_low)}, {high}]" if power.x_at_low is not None else ""
    return f"{number_text(target)} at {x_text(curve.x)} = {number_text(power.x_at_target)}{interval}"
