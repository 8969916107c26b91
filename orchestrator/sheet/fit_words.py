"""Names of models and states, and what the rule for preferred models decides, in words with markup."""

from collections.abc import Mapping, Sequence

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import by_request, count_states
from depthrate.orchestrator.analysis.preference import GroupState, Preference
from depthrate.orchestrator.sheet.fit_sheet import number_text
from depthrate.orchestrator.sheet.markup import literal
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import MODELS

MODEL_WORDS = {
    "power": "power law",
    "power_floor": "power law with floor",
    "power_correction": "power law with correction",
    "power_log": "power law with log factor",
    "power_log2": "power law with squared logarithm",
    "proportional": "proportionality",
    "exponential": "exponential",
    "log_linear": "log-linear",
}
"""Models by their names in prose."""
STATE_WORDS = {
    GroupState.POWER_LAW: "power law",
    GroupState.OTHER_FORM: "another form",
    GroupState.FLAT: "flat",
    GroupState.NONE: "no form",
    GroupState.TOO_FEW: "too few values",
    GroupState.NOT_YET: "not yet",
}
"""States of a group, as in `2 of 3 groups follow a power law, 1 no form`."""
LINES = "Lines: power laws, with exponent and 95 % interval."
HOLLOW = "Hollow: the values do not prefer a power law."
DOTTED = "Dotted: another model, if the values do not prefer a power law."
RULE = (
    "a: exponent of $y ≈ c x^{-a}$, fitted to log y of every trial. Preferred: adequate, and not ruled out by AICc, or a power "
    "law that its test does not reject. No form: no model is adequate."
)
NO_POWER_LAW = "no power law"


def headline(counts: Mapping[str, int]) -> str:
    """Return the counts of a request's groups in words, as in `2 of 9 groups follow a power law, 6 another form, 1 not yet`."""
    total, laws = sum(counts.values()), counts.get(GroupState.POWER_LAW, 0)
    others = [state for state in GroupState if state is not GroupState.POWER_LAW and counts.get(state)]
    verb = "group follows" if total == 1 else "groups follow"
    return ", ".join(
        [f"{laws} of {total} {verb} a power law", *(f"{counts[state]} {STATE_WORDS[state]}" for state in others)]
    )


def headlines(curves: Sequence[FittedGroup]) -> list[str]:
    """Return the headline of each request with several groups, with its metric, x and options."""
    return [
        literal(f"{', '.join([f'{request.metric} over {request.x_text}', *request.options])}: ")
        + headline(count_states(group))
        for request, group in by_request(curves).items()
        if len(group) > 1
    ]


def doubt(preference: Preference) -> str:
    """Return what the values cannot decide, as in `: 3 seeds at 5 depths cannot decide`. Empty if they decide."""
    if preference.is_decided or not preference.models:
        return ""
    if len(preference.models) == 1:
        return f" ({literal(preference.judges)} cannot rule out another curve)"
    another = " or another curve" if preference.is_another_possible else ""
    return f"{another}: {literal(preference.judges)} cannot decide"


def state_text(preference: Preference) -> str:
    """Return a group's state with its reason, as in `no form (R^2 0.37)`."""
    reason = f" ({reason_text(preference.reason)})" if preference.reason else ""
    return f"{STATE_WORDS[preference.state]}{reason}"


def state_label(preference: Preference) -> tuple[str, str]:
    """Return a group's state and what is behind it in two short texts: the preferred models, or the reason."""
    detail = model_words(preference.names) if preference.models else reason_text(preference.reason)
    return STATE_WORDS[preference.state], detail


def preferred_text(preference: Preference) -> str:
    """Return the names of the preferred models with the doubt, or the state of a group without any."""
    names = literal(" or ".join(preference.names))
    return f"{names}{doubt(preference)}" if names else state_text(preference)


def undecided_texts(curves: Sequence[FittedGroup]) -> list[str]:
    """Explain alternatives in one cell of a table. Empty if the values of each curve decide."""
    named = [preference for preference in (curve.preference for curve in curves) if preference.models]
    judges = {preference.judges for preference in named if len(preference.models) > 1}
    sentences = (
        [f"Models joined by or: {literal(' or '.join(sorted(judges)))} cannot decide between them."] if judges else []
    )
    if num_open := sum(preference.is_another_possible for preference in named):
        groups = f" in {num_open} of {len(curves)} groups" if len(curves) > 1 else ""
        sentences.append(f"Another curve is not ruled out{groups}.")
    return sentences


def reason_text(reason: str) -> str:
    """Return a reason of the analysis with markup."""
    return literal(reason).replace(r"R\^2", "$R^{2}$")


def model_words(names: Sequence[str]) -> str:
    """Name models in prose, as in `power law or exponential`."""
    return " or ".join(MODEL_WORDS[name] for name in names)


def law_words(fit: Fit) -> str:
    """Name a model other than the power law, as in `a power law with floor (exponent 0.81, floor 0.03)`."""
    model, words = MODELS[fit.form], MODEL_WORDS[fit.form]
    values = [f"exponent ${number_text(fit.exponent, '.2f')}$"]
    for parameter in model.parameters:
        value = fit.parameter(parameter.name)
        values.append(f"{parameter.symbol} {'—' if value is None else f'${number_text(value)}$'}")
    name = words if " " in words else f"{words} law"
    details = f" ({', '.join(values)})" if model.values_are_told else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{details}"


def model_notes(names: Sequence[str]) -> list[str]:
    """Define the names of models that differ from their words, as in `power_log: power law with log factor.`."""
    words = {name: MODEL_WORDS[name] for name in names if name != "power"}
    return [f"{literal(name)}: {text}." for name, text in words.items() if name != text.replace("-", "_")]
