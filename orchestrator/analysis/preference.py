"""Select the forms that describe fitted values: one rule for curves, tables in several variables, and all that shows fits.

A form is adequate if R^2 of the means of log y is at least MIN_R2, no mean is farther from it than MAX_RESIDUAL_SHARE of
the range of all means, there are means at MIN_MEANS values of the variables or more, and the test against one mean per value
does not reject it (at LEVEL, corrected by Holm's procedure for the number of forms). The data prefer the adequate form with the
lowest AICc, and name with it each adequate one that AICc does not rule out: within CLEAR_AICC if it is the best, a power law,
with a further parameter, and within NO_SUPPORT otherwise. An adequate power law is named unless its own test, without
correction, rejects it.

Another form than ours remains possible if AICc does not rule out a power law with a break, or if there are so few x and
replicates that, in simulations, one form was often taken for another (benchmarks/preferred.py). In several variables it always
does.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from depthrate.tasks.fits.bootstrap_and_profile import holm
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import FORMS, POWER

LogMeans: TypeAlias = Mapping[tuple[float, ...], float]
"""Values of the variables -> mean of log y there."""
MIN_R2 = 0.9
"""R^2 of the means below which a form is inadequate."""
LEVEL = 0.05
"""Significance level of the test against one mean per x. AICc alone accepts curves that are far from the means."""
CLEAR_AICC = 2.0
"""Difference of AICc from which a form is better than another (Burnham and Anderson 2002, section 2.6)."""
MAX_RESIDUAL_SHARE = 1 / 3
MIN_MEANS = 4
NO_SUPPORT = 10.0
"""Difference of AICc from which a form has essentially no support (Burnham and Anderson 2002, section 2.6). Below it, a curve
of another form prefers one of ours by chance: with 2, a broken power law was called by one false form in 56 to 93 % of
simulations (benchmarks/preferred.py)."""
MIN_X_TO_TELL = {3: 8, 5: 7}
"""Number of replicates -> number of x from which a false form was named alone in at most 10 % of simulations at 10 % noise.
With fewer, a power law with a correction was taken for a power law in 21 to 47 % (benchmarks/preferred.py)."""


class GroupState(StrEnum):
    """Code of what the values of a group decide, as in the fits table. All that shows fits counts groups by it."""

    POWER_LAW = "power law"
    OTHER_FORM = "another form"
    FLAT = "flat"
    NONE = "none"
    TOO_FEW = "too few"
    NOT_YET = "not yet"


@dataclass(frozen=True)
class Preference:
    """Forms that describe the values equally well, as far as they decide."""

    state: GroupState
    models: tuple[Fit, ...]
    """Adequate forms that the values do not rule out, lowest AICc first. Empty if no form is adequate."""
    judges: str
    """Values that decide, as in `3 seeds at 5 depths` or `15 values at 5 depths`."""
    reason: str
    """Reason why the power law is inadequate, if no form is adequate, or why the values cannot decide yet."""
    nearest: Fit | None = None
    """Form with the lowest AICc, if no form is adequate."""
    is_another_possible: bool = False
    """Whether the values do not rule out a form that is none of ours."""

    @property
    def is_decided(self) -> bool:
        """Whether exactly one form is left, and no other."""
        return len(self.models) == 1 and not self.is_another_possible

    @property
    def names(self) -> list[str]:
        """Names of the forms."""
        return [fit.form for fit in self.models]


def power_of(fits: Sequence[Fit]) -> Fit | None:
    """Return the power law, if its exponents are finite."""
    return next((fit for fit in fits if fit.form == POWER.name and all(map(math.isfinite, fit.exponents))), None)


def judge(fits: Sequence[Fit], means: LogMeans, names: Sequence[str]) -> Preference:
    """Return the forms that describe values, by the rule of this module.

    Args:
        fits: At least one form fitted to the values.
        means: Means of log y.
        names: Names of the variables.
    """
    first, power = fits[0], power_of(fits)
    noun = "value" if first.n_seeds is None else "seed"
    judges = f"{first.n_units} {noun}{'' if first.n_units == 1 else 's'} at {len(means)} {places_of(names)}"
    if len(means) < MIN_MEANS:
        return Preference(GroupState.TOO_FEW, (), judges, _too_few(means, names))
    reasons = why_inadequate(fits, means, names)
    adequate = [fit for fit in fits if not reasons[fit.form]]
    ranked = sorted((fit for fit in adequate if math.isfinite(_aicc_of(fit))), key=_aicc_of)
    if power is not None and (reach := _flat_within(power)) is not None:
        return Preference(GroupState.FLAT, (), judges, f"slope 0 within ±{reach:.2g}")
    if not ranked:  # without AICc, the power law is the only form that is compared with the values
        if power is not None and power in adequate:
            return Preference(GroupState.POWER_LAW, (power,), judges, "", is_another_possible=True)
        nearest = min(fits, key=_aicc_of)
        return Preference(GroupState.NONE, (), judges, reasons[(power or nearest).form], nearest)
    best = ranked[0]
    can_tell = _can_tell(first, means)
    models = [
        fit
        for fit in ranked
        if (fit is power and _is_kept(power))
        or _aicc_of(fit) - _aicc_of(best) < (_clear_aicc(best, fit) if can_tell else NO_SUPPORT)
    ]
    state = GroupState.POWER_LAW if power in models else GroupState.OTHER_FORM
    has_break = best.aicc_break is not None and best.aicc_break - _aicc_of(best) < CLEAR_AICC
    return Preference(state, tuple(models), judges, "", is_another_possible=has_break or not can_tell)


def why_inadequate(fits: Sequence[Fit], means: LogMeans, names: Sequence[str]) -> dict[str, str]:
    """Return why each form does not describe the values, as in `lack of fit, p = 0.003`, or an empty string.

    The p-values are corrected by Holm's procedure for the number of forms.
    """
    tested = {fit.form: fit.p_lack_of_fit for fit in fits if fit.p_lack_of_fit is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {fit.form: why_far(fit, means, names) or lack_of_fit_text(corrected.get(fit.form)) for fit in fits}


def why_far(fit: Fit, means: LogMeans, names: Sequence[str]) -> str:
    """Return the reason why a form is far from the means, as in `R^2 0.37`, or an empty string."""
    if len(means) < MIN_MEANS:
        return _too_few(means, names)
    if fit.r2 is not None and fit.r2 < MIN_R2:
        return f"R^2 {fit.r2:.2f}"
    predicted = fit.predict(np.array(list(means)).T).tolist()
    residuals = {
        x: mean - math.log(value) if value > 0 else math.inf
        for (x, mean), value in zip(means.items(), predicted, strict=True)
    }
    x, farthest = max(residuals.items(), key=lambda item: abs(item[1]))
    if abs(farthest) <= MAX_RESIDUAL_SHARE * (max(means.values()) - min(means.values())) + 1e-9:
        return ""
    place = ", ".join(f"{name} = {value:g}" for name, value in zip(names, x, strict=True))
    if math.isinf(farthest):
        return f"the fit at {place} is not positive"
    return f"the mean at {place} is off by a factor {math.exp(abs(farthest)):.1f}"


def lack_of_fit_text(p: float | None) -> str:
    """Return the p-value of a test that rejects a form, as in `lack of fit, p = 0.003`. Empty if it does not."""
    return "" if p is None or p >= LEVEL else f"lack of fit, p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"


def places_of(names: Sequence[str]) -> str:
    """Name values of the variables, as in `depths`, also for arithmetic over the depth alone."""
    if len(names) > 1:
        return f"combinations of {' and '.join(names)}"
    return "depths" if set(re.findall(r"[^\W\d]\w*", names[0])) == {"depth"} else f"values of {names[0]}"


def _aicc_of(fit: Fit) -> float:
    """Return a fit's AICc, infinite without one."""
    return math.inf if fit.aicc is None else fit.aicc


def _too_few(means: LogMeans, names: Sequence[str]) -> str:
    return f"{len(means)} values of {' and '.join(names)}, at least {MIN_MEANS} needed"


def _is_kept(power: Fit) -> bool:
    """Return whether an adequate power law is named whatever its AICc. Without a test, AICc decides on independent values."""
    return power.n_seeds is not None if power.p_lack_of_fit is None else power.p_lack_of_fit >= LEVEL


def _can_tell(fit: Fit, means: LogMeans) -> bool:
    """Return whether one form named alone is seldom another one, by the number of x and of replicates at each."""
    if len(fit.variables) > 1:  # not simulated
        return False
    num_replicates = fit.n_points // len(means) if fit.n_seeds is None else fit.n_seeds
    return any(num_replicates >= replicates and len(means) >= x for replicates, x in MIN_X_TO_TELL.items())


def _flat_within(power: Fit) -> float | None:
    """Return the farther end of the only exponent's interval if it includes 0 and the test accepts the power law, or None."""
    low, high, p = power.ci_low, power.ci_high, power.p_lack_of_fit
    if len(power.variables) > 1 or low is None or high is None or not low <= 0 <= high or p is None or p < LEVEL:
        return None
    return max(-low, high)


def _clear_aicc(best: Fit, fit: Fit) -> float:
    """Return the difference of AICc from which the best form rules the other out."""
    contains_best = best.form == POWER.name and FORMS[fit.form].num_parameters > POWER.num_parameters
    return CLEAR_AICC if contains_best else NO_SUPPORT
