"""Sheets of curves: their rates with the evidence, all of their models, and pairs of two sweeps."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.compare import FitPair
from depthrate.orchestrator.analysis.convergence import UNTRAINED_ADVICE
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import (
    adequate_power,
    curves_with_common_exponent,
    followed_power,
    inadequacy,
    local_exponents,
)
from depthrate.orchestrator.analysis.preference import LEVEL, GroupState, Preference
from depthrate.orchestrator.sheet.fit_sheet import (
    Column,
    FitSheet,
    IntervalValue,
    Kind,
    Value,
    interval_text,
    is_finite,
    number_text,
    p_text,
)
from depthrate.orchestrator.sheet.fit_words import (
    MODEL_WORDS,
    NO_POWER_LAW,
    STATE_WORDS,
    doubt,
    headlines,
    law_words,
    model_notes,
    model_words,
    reason_text,
    state_text,
    undecided_texts,
)
from depthrate.orchestrator.sheet.markup import literal
from depthrate.orchestrator.sheet.names import (
    curve_label,
    curve_name,
    group_phrase,
    shorten,
    value_text,
    x_base,
    x_text,
)
from depthrate.orchestrator.sheet.value_sheets import loss_remarks
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS

MAX_GROUPS_NAMED = 4
"""Maximum number of groups named in a sentence."""
_MOVED = "a moved: change of the exponent in the last quarter of training, and how far another quarter could move it."
_MOVED_OF_LOG = " It is that of squares of the residuals of log y, whatever the loss of the fit."
_MODELS_NOTE = (
    "95 % interval of a: over whole seeds (Student's t, all values of a seed together), ∞ for an open end. SD over seeds: "
    "standard deviation of a between seeds, including noise. If each trial is its own replicate: bootstrap over the trials at "
    "each x (BCa), or Student's t if no x has two trials, and the profile interval, the a that an F test does not reject at "
    "5 %. p: of a pure power law with that exponent, which no theorem states. Weight: Akaike weight among the models of one "
    "curve, with a level per seed. The store's table fits has all digits."
)


def same_fits(curves: Iterable[FittedGroup]) -> list[list[FittedGroup]]:
    """Return the curves of each metric over one x by the same parameters, in order."""
    return list(grouped(curves, lambda curve: (curve_label(curve), curve.x, *curve.by)).values())


def rates_sheet(curves: Sequence[FittedGroup]) -> FitSheet:
    """Return one row per curve: its power law, its preferred models, and the evidence for and against them."""
    by = list(dict.fromkeys(name for curve in curves for name in curve.by))
    xs = list(dict.fromkeys(x_text(curve.x) for curve in curves))
    metrics = list(dict.fromkeys(map(curve_label, curves)))
    rows = [_rate_row(curve, curve.preference) for curve in curves]
    if len(xs) == 1:
        rows = [row | {"over": None} for row in rows]
    is_in_law = all("law" in row for row in rows)
    has_other_loss = any(curve.asked.loss != "log" for curve in curves)
    columns = [
        Column("metric", "metric", is_name=True),
        Column("over", "over", is_optional=True, is_name=True, is_detail=is_in_law),
        *(Column(name, literal(shorten(name)), is_optional=True, is_name=True) for name in by),
        Column("law", "power law", is_spare=True),
        Column("exponent", "exponent a [95 %]", Kind.INTERVAL),
        Column("r2", "$R^{2}$", Kind.NUMBER, is_spare=True),
        Column("trials", "trials", Kind.COUNT, is_spare=True),
        Column("unconverged", "unconverged", Kind.COUNT, is_detail=True),
        Column("bound", "theorem's bound", is_optional=True),
        Column("preferred", "preferred model", is_spare=True),
        Column("target", "target", is_optional=True),
        Column("moved", "a moved", note=_MOVED + (_MOVED_OF_LOG if has_other_loss else ""), is_optional=True),
        Column("left_out", "left out", is_optional=True),
        Column("bound_ratio", "a of the ratio to the bound", Kind.INTERVAL, is_optional=True, is_detail=True),
        Column("verdict", "adequate", is_detail=True),
        Column("others", "other models", is_optional=True, is_detail=True),
        Column("above", "objective above a shallower network's", is_optional=True, is_detail=True),
        Column("range", "range of x", is_optional=True, is_detail=True),
    ]
    title = f"{metrics[0] if len(metrics) == 1 else 'Rates'} over {' and '.join(xs)}{', by group' if by else ''}"
    names = [name for curve in curves for name in curve.preference.names]
    over = list(dict.fromkeys(curve.draws for curve in curves if curve.draws))
    return FitSheet(
        title,
        columns,
        rows,
        headlines(curves),
        [
            _groups_sentence(group) if len(group) > 1 else _sentence(group[0], group[0].preference)
            for group in same_fits(curves)
        ],
        _remarks(curves),
        [*([f"Intervals over {literal(' or '.join(over))}."] if over else []), *model_notes(names)],
        _details(curves),
    )


def _rate_row(curve: FittedGroup, preference: Preference) -> dict[str, Value]:
    power = curve.power
    row: dict[str, Value] = {
        "metric": curve_label(curve),
        "over": x_text(curve.x),
        **{name: literal(shorten(value_text(value))) for name, value in curve.by.items()},
        "exponent": exponent_value(curve, preference),
        "r2": None if power is None else power.r2,
        "trials": len(curve.rows),
        "unconverged": len(curve.unconverged) if curve.judged else None,
        "left_out": literal(curve.excluded_text),
        "preferred": literal(" or ".join(preference.names)) or state_text(preference),
    }
    if power is None or preference.state is GroupState.NOT_YET:
        return row
    if adequate_power(curve):
        moved = "" if curve.drift is None else f"${curve.drift.moved:+z.3f}$ (<{curve.drift.could_move:.3f})"
        row |= {"law": law_text(curve.x, power), "target": _target(curve, power), "moved": moved}
    return row | {
        "bound": _bound(curve),
        "bound_ratio": _bound_ratio(curve),
        "verdict": _verdict(curve, power, preference),
        "others": _others(curve, power, preference),
        "above": literal(_above(curve)),
        "range": _range(curve),
    }


def exponent_value(curve: FittedGroup, preference: Preference) -> Value:
    """Return the exponent of an adequate power law, or the reason for its absence."""
    if preference.state is GroupState.NOT_YET:
        return f"{STATE_WORDS[GroupState.NOT_YET]}: {reason_text(preference.reason)}"
    if curve.power is None:
        return f"no fit: {literal(curve.note or 'too few points')}"
    power = adequate_power(curve)
    if power is None:
        local = _local(curve)
        return f"{NO_POWER_LAW}{f': local exponents {local}' if local else ''}"
    is_hollow = preference.state is not GroupState.POWER_LAW
    return IntervalValue(power.exponent, power.ci_low, power.ci_high, is_hollow)


def law_text(x: str, power: Fit) -> str:
    """Return a power law as a formula."""
    return f"${number_text(power.prefactor, '#.3g')} {literal(x_base(x))}^{{{-power.exponent:z.3f}}}$"


def _local(curve: FittedGroup) -> str:
    """Return the range of the exponents between neighbouring x."""
    exponents = local_exponents(curve)
    return f"from ${min(exponents):z.2f}$ to ${max(exponents):z.2f}$" if exponents else ""


def _bound(curve: FittedGroup) -> str:
    """Return the verdict on a theorem's upper bound, which holds for optima, and the bound up to a factor."""
    check = curve.bound
    if check is None or not curve.is_stationary:
        return ""
    verdict = f"**{check.verdict}**" if check.verdict == "slower" else check.verdict
    return f"{verdict} (${literal(x_base(curve.x))}^{{{-check.exponent:z.2f}}}$)"


def _bound_ratio(curve: FittedGroup) -> IntervalValue | None:
    """Return the exponent of the ratio of the values to a theorem's upper bound."""
    check = curve.bound
    if check is None or not curve.is_stationary:
        return None
    return IntervalValue(check.ratio, check.ci_low, check.ci_high)


def _target(curve: FittedGroup, power: Fit) -> str:
    """Return the x at which the power law reaches the target."""
    if curve.asked.target is None:
        return ""
    target, x = f"${number_text(curve.asked.target)}$ at", x_text(curve.x)
    if power.x_at_target is None:
        return f"{target} no {x}"
    interval = "" if power.x_at_low is None else f" {interval_text(power.x_at_low, power.x_at_high, '.3g')}"
    return f"{target} {x} ${number_text(power.x_at_target)}${interval}"


def _verdict(curve: FittedGroup, power: Fit, preference: Preference) -> str:
    """Return whether the power law is adequate and preferred."""
    if why := inadequacy(curve, power):
        return f"no: {reason_text(why)}"
    if followed_power(curve):
        return "yes"
    return (
        STATE_WORDS[preference.state] if preference.models else "yes" if preference.state is GroupState.FLAT else "no"
    )


def _others(curve: FittedGroup, power: Fit, preference: Preference) -> str:
    """Return the preferred models, the best other model by AICc and the test of the power law."""
    others = [fit for fit in curve.fits if fit is not power and is_finite(fit.aicc)]
    if not others or not is_finite(power.aicc):
        return "none (too few distinct values or points)"
    best = min(others, key=lambda fit: fit.aicc or 0.0)
    why = inadequacy(curve, best)
    parts = [
        f"preferred: {model_words(preference.names) or 'none'}{doubt(preference)}",
        f"{MODEL_WORDS[best.form]}: ΔAICc ${(best.aicc or 0.0) - power.aicc:+z.1f}$"
        + (f", does not fit ({reason_text(why)})" if why else ""),
    ]
    if power.p_lack_of_fit is not None:
        p = p_text(power.p_lack_of_fit)
        parts.append(f"{MODEL_WORDS[power.form]}: p {p if p.startswith('<') else f'= {p}'}")
    return "; ".join(parts)


def _above(curve: FittedGroup) -> str:
    """Count the trials with an objective above a shallower network's."""
    if not curve.above:
        return ""
    return f"{len(curve.above)} of {len(curve.rows)} trials, by up to {max(curve.above.values()):.1%}"


def _range(curve: FittedGroup) -> str:
    """Describe the cut-off, and the exponents without the smallest x and over the three largest x."""
    x = x_text(curve.x)
    parts = [] if curve.asked.x_min is None else [f"from {x} = {curve.asked.x_min:g}"]
    if len(curve.sensitivity) > 1:
        whole, row, *_ = curve.sensitivity
        parts.append(f"a = ${row['exponent']:z.2f}$ without {x} = {whole['x_min']:g}")
    if len(curve.sensitivity) > 2:
        last = curve.sensitivity[-1]
        interval = f" {interval_text(last['ci_low'], last['ci_high'])}".rstrip()
        parts.append(f"a = ${last['exponent']:z.2f}${interval} from {x} = {last['x_min']:g}")
    return "; ".join(parts)


# Sentences


def _groups_sentence(curves: Sequence[FittedGroup]) -> str:
    """Describe the groups of one metric over one x: how many follow a power law, and with which exponents."""
    label, x = curve_label(curves[0]), x_text(curves[0].x)
    laws = sorted(
        ((curve, power) for curve in curves if (power := followed_power(curve))), key=lambda law: law[1].exponent
    )
    sentences = [f"{label} follows {NO_POWER_LAW} over {x} in any of {len(curves)} groups."]
    if laws:
        ends = [
            f"**${power.exponent:z.2f}$** {interval_text(power.ci_low, power.ci_high)} at {literal(group_phrase(curve.by))}"
            for curve, power in (laws if len(laws) == 1 else (laws[0], laws[-1]))
        ]
        exponents = f"the exponent {ends[0]}" if len(laws) == 1 else f"exponents from {', to '.join(ends)}"
        verb, count = _verb([power for _, power in laws]), f"**{len(laws)} of {len(curves)}** groups"
        sentences = [f"{label} {verb} as a power of {x} in {count}, with {exponents}."]
    in_state = grouped(curves, lambda curve: curve.preference.state)
    named = {
        GroupState.OTHER_FORM: "Other models are preferred",
        GroupState.NONE: "No form fits",
        GroupState.FLAT: "Flat",
        GroupState.TOO_FEW: "Too few values",
        GroupState.NOT_YET: "Not yet",
    }
    for state, words in named.items():
        if part := in_state.get(state):
            reason = part[0].preference.reason
            sentences.append(f"{words} at {_groups(part, curves)}{f' ({reason_text(reason)})' if reason else ''}.")
    excluded = sum((Counter(curve.excluded) for curve in curves), Counter[str]())
    del excluded["untrained"]  # the remarks count them
    reasons = ", ".join(f"{count} {reason}" for reason, count in excluded.items())
    sentences += [f"Excluded: {literal(reasons)}."] if reasons else []
    return " ".join(sentences)


def _groups(chosen: Sequence[FittedGroup], curves: Sequence[FittedGroup]) -> str:
    """Name some of the groups: by one value if they are all groups with that value."""
    names, rest = [], list(chosen)
    for name in curves[0].by:
        for value in dict.fromkeys(value_text(curve.by[name]) for curve in rest):
            alike = [curve for curve in curves if value_text(curve.by[name]) == value]
            if len(alike) > 1 and all(curve in rest for curve in alike):
                names.append(group_phrase({name: value}))
                rest = [curve for curve in rest if curve not in alike]
    names += [group_phrase(curve.by) for curve in rest]
    more = [f"{len(names) - MAX_GROUPS_NAMED} other groups"] if len(names) > MAX_GROUPS_NAMED + 1 else []
    return literal("; ".join(names[:MAX_GROUPS_NAMED] + more if more else names))


def _sentence(curve: FittedGroup, preference: Preference) -> str:
    """Describe one curve, with the preferred model first."""
    power, group, x = curve.power, literal(group_phrase(curve.by)), x_text(curve.x)
    subject = f"{curve_label(curve)} at {group}" if group else curve_label(curve)
    exclusions = f" Excluded: {literal(curve.excluded_text)}." if curve.excluded_text else ""
    if power is None or preference.state is GroupState.NOT_YET:
        return f"{subject}: {exponent_value(curve, preference)}.{exclusions}"
    local = f"; local exponents over {x} {text}" if (text := _local(curve)) else ""
    nearest = preference.nearest
    if preference.state is GroupState.FLAT:
        what = f" is **flat** over {x}: {literal(preference.reason)}"
    elif preference.state is GroupState.TOO_FEW:
        what = f": **{state_text(preference)}**{local}"
    elif not preference.models:
        near = "" if nearest is None else f"; the nearest is the {MODEL_WORDS[nearest.form]}"
        what = f": **no form fits** ({reason_text(preference.reason)}){near}{local}"
    else:
        what = f" {_models_text(curve, power, preference)}{_interval(curve, power)}"
    return f"{subject}{what}.{exclusions}"


def _models_text(curve: FittedGroup, power: Fit, preference: Preference) -> str:
    """Describe the preferred models, with the power law first if it is one of them and last otherwise."""
    others = " or ".join(law_words(fit) for fit in preference.models if fit is not power)
    rate = f"{_verb([power])} as ${literal(x_base(curve.x))}^{{{-power.exponent:z.2f}}}$"
    if power in preference.models:
        return f"**{rate}**{f' or follows {others}' if others else ''}{doubt(preference)}"
    if why := inadequacy(curve, power):
        local = f"; local exponents over {x_text(curve.x)} {text}" if (text := _local(curve)) else ""
        rate = f"it follows {NO_POWER_LAW} ({reason_text(why)}){local}"
    else:
        rate = f"as a power law it {rate}"
    return f"**follows {others}**{doubt(preference)}; {rate}"


def _verb(powers: Sequence[Fit]) -> str:
    """Return `falls` or `grows` if the intervals of all exponents exclude 0 on the same side, otherwise words for neither."""
    ends = [(power.ci_low, power.ci_high) for power in powers]
    if all(is_finite(low) and low > 0 for low, _ in ends):
        return "falls"
    if all(is_finite(high) and high < 0 for _, high in ends):
        return "grows"
    is_zero_inside = all(is_finite(low) and is_finite(high) for low, high in ends) and len(ends) == 1
    return "neither falls nor grows significantly," if is_zero_inside else "goes"


def _interval(curve: FittedGroup, power: Fit) -> str:
    """Return the interval of an adequate power law's exponent a, or the reason for its absence."""
    if adequate_power(curve) is None:
        return ""
    interval = interval_text(power.ci_low, power.ci_high)
    if not interval:
        why = "too few points" if power.n_seeds is None else f"{_seeds(power.n_seeds)}, at least {MIN_SEEDS} needed"
        return f", no interval ({why})"
    over = f" over {literal(curve.draws)}" if curve.draws else ""
    of_a = "" if is_finite(power.ci_low) and power.ci_low > 0 else " of a"
    return f", 95 % interval{of_a} {interval}{over}"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


# Remarks


def _remarks(curves: Sequence[FittedGroup]) -> list[str]:
    """Return what the values do not decide, and what limits the results."""
    remarks = [" ".join(texts)] if (texts := undecided_texts(curves)) else []
    if untrained := frozenset().union(*(curve.untrained for curve in curves)):
        remarks.append(
            f"**Untrained: {len(untrained)}** (trials at the loss of constant predictions, excluded). {UNTRAINED_ADVICE}"
        )
    fitted = [curve for curve in curves if curve.fits]
    used = {row["trial_id"] for curve in fitted for row in curve.rows}
    if any(curve.judged or curve.unconverged for curve in fitted):
        falling = used & frozenset().union(*(curve.unconverged for curve in fitted))
        remarks.append(_convergence(fitted, len(used), len(falling)))
    above = {trial_id: share for curve in fitted for trial_id, share in curve.above.items()}
    if above:
        remarks.append(
            f"{len(above)} of {len(used)} trials have a higher objective than a shallower network, by up to "
            f"{max(above.values()):.1%} of their gap to the limit, or of the objective if no limit is known."
        )
    for curve in fitted:
        for text in loss_remarks(curve.power, curve.x) if curve.power else ():
            remarks.append(f"{curve_name(curve)}: {literal(text)}.")
    return [*remarks, *map(_common, curves_with_common_exponent(curves))]


def _details(curves: Sequence[FittedGroup]) -> list[str]:
    """Explain the evidence on optima."""
    details = []
    if any(curve.fits and curve.bound is not None and not curve.is_stationary for curve in curves):
        details.append(
            "The theorem's bound holds for optima and is not compared: these rates are of training at this budget."
        )
    if any(curve.above for curve in curves):
        details.append(
            "An optimum's objective is never above a shallower network's. The excess is a share of its height above the limit."
        )
    return details


def _convergence(fitted: Sequence[FittedGroup], num_used: int, num_falling: int) -> str:
    if all(curve.is_stationary for curve in fitted):
        return f"Stationary: all {num_used} trials, by their solver's tolerance."
    count = f"**{num_falling} of {num_used} trials are unconverged**"
    if any(curve.stationary for curve in fitted):
        return f"{count}: their solver stopped above its tolerance. To solve longer, raise polish."
    drop = " To exclude them, set unconverged: drop under fit:." if num_falling < num_used else ""
    advice = f"{count}. To train longer, raise steps.{drop}" if num_falling else "all objectives have come to rest."
    return f"The exponents describe training at this budget, not an optimum: {advice}"


def _common(curve: FittedGroup) -> str:
    """Describe the test for a common exponent of a request's groups."""
    common = curve.common
    assert common is not None
    verdict = "do not share one exponent" if common.p_common < LEVEL else "are compatible with one exponent"
    p = p_text(common.p_common)
    exponent = f"a = ${common.exponent:z.3f}$ {interval_text(common.ci_low, common.ci_high, '.3f')}"
    test = f"F test, p {p if p.startswith('<') else f'= {p}'}"
    return f"{curve_label(curve)}: the {common.num_groups} groups {verdict} ({test}). Common fit: {exponent}."


# Other sheets of curves


def models_sheet(curves: Sequence[FittedGroup]) -> FitSheet:
    """Return one row per curve and model."""
    symbols = dict.fromkeys(parameter.symbol for model in MODELS.values() for parameter in model.parameters)
    columns = [
        Column("fit", "fit"),
        Column("model", "model"),
        Column("exponent", "a [95 %]", Kind.INTERVAL),
        Column("stderr", "std. error", Kind.NUMBER, "#.2g", is_optional=True),
        Column("seed_spread", "SD over seeds", Kind.NUMBER, "#.2g", is_optional=True),
        Column("profile", "profile interval", is_optional=True),
        Column("p_half", "p(a = ½)", Kind.P_VALUE, is_optional=True),
        Column("p_one", "p(a = 1)", Kind.P_VALUE, is_optional=True),
        Column("prefactor", "c", Kind.NUMBER, "#.3g"),
        *(Column(symbol, symbol, Kind.NUMBER, "#.3g", is_optional=True) for symbol in symbols),
        Column("r2", "$R^{2}$", Kind.NUMBER),
        Column("aicc", "AICc", Kind.NUMBER, ".1f", is_optional=True),
        Column("weight", "weight", Kind.NUMBER, ".1%", is_optional=True),
        Column("p_lack_of_fit", "p(lack of fit)", Kind.P_VALUE, is_optional=True),
        Column("n_points", "n", Kind.COUNT),
    ]
    names = (
        "stderr",
        "seed_spread",
        "p_half",
        "p_one",
        "prefactor",
        "r2",
        "aicc",
        "weight",
        "p_lack_of_fit",
        "n_points",
    )
    rows = list[dict[str, Any]]()
    for curve in curves:
        facts = [f"intervals over {literal(curve.draws)}"] if curve.draws else []
        facts += [f"excluded: {literal(curve.excluded_text)}"] if curve.excluded_text else []
        title = curve_name(curve) + (f" ({'; '.join(facts)})" if facts else "")
        for fit in curve.fits:
            ends = (fit.ci_low, fit.ci_high) if fit.ci_method else (None, None)
            rows.append(
                {"fit": title, "model": MODEL_WORDS[fit.form], "exponent": IntervalValue(fit.exponent, *ends)}
                | {"profile": interval_text(fit.profile_low, fit.profile_high, ".3f")}
                | {name: getattr(fit, name) for name in names}
                | {parameter.symbol: fit.parameter(parameter.name) for parameter in MODELS[fit.form].parameters}
            )
    formulas = "; ".join(f"{MODEL_WORDS[model.name]}: ${model.formula}$" for model in MODELS.values())
    note = f"Models of a metric y over x, fitted to log y of every trial: {formulas}. {_MODELS_NOTE}"
    return FitSheet("All fits", columns, rows, notes=[note], grouped_by="fit")


def pairs_sheet(pairs: Sequence[FitPair]) -> FitSheet:
    """Return one row per curve of two sweeps, with the test for equal exponents."""
    columns = [
        Column("metric", "metric"),
        Column("group", "group", is_optional=True),
        Column("p", "p(equal)", Kind.P_VALUE),
        Column("first", "exponent of first", Kind.INTERVAL),
        Column("second", "of second", Kind.INTERVAL),
        Column("both", "of both", Kind.INTERVAL),
    ]
    rows: list[dict[str, Value]] = []
    for pair in pairs:
        common, first, second = pair.stated_common, pair.first, pair.second
        labels = first.label(), second.label()
        group = labels[0] if first.by == second.by else " / ".join(label or "all" for label in labels)
        metric = f"{first.metric} over {first.x}" if first.x != "depth" else first.metric
        rows.append(
            {"metric": literal(metric), "group": literal(group), "p": None if common is None else common.p_common}
            | {"first": exponent_value(first, first.preference)}
            | {"second": exponent_value(second, second.preference)}
            | {"both": None if common is None else IntervalValue(common.exponent, common.ci_low, common.ci_high)}
        )
    remark = "p(equal): F test that both share the exponent, over the seeds in both"
    return FitSheet("Exponents of both sweeps", columns, rows, remarks=[remark])
