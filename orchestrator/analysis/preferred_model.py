"""Select the models that describe a fitted curve, and judge its group: one rule for all that shows fits.

A model is adequate if R^2 of the means of log y is at least MIN_R2, no mean is farther from it than MAX_RESIDUAL_SHARE of
the range of all means, x has at least MIN_DISTINCT_X values, and the test against one mean per x does not reject it (at
LEVEL, corrected by Holm's procedure for the number of models). The data prefer the adequate model with the lowest AICc, and
name with it each adequate one that AICc does not rule out: within CLEAR_AICC if it is the best, a power law, with a further
parameter, and within NO_SUPPORT otherwise. An adequate power law is named unless its own test, without correction, rejects it.

Another curve than the models remains possible if AICc does not rule out a power law with a break, or if there are so few x and
replicates that, in simulations, one form was often taken for another (benchmarks/preferred.py).
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.bootstrap_and_profile import holm
from depthrate.tasks.fits.fit import CLEAR_AICC, LEVEL, MIN_R2, Fit, aicc_of, lack_of_fit_text
from depthrate.tasks.fits.models import MODELS, POWER
from depthrate.tasks.fits.rates import predict

MAX_RESIDUAL_SHARE = 1 / 3
MIN_DISTINCT_X = 4
NO_SUPPORT = 10.0
"""Difference of AICc from which a model has essentially no support (Burnham and Anderson 2002, section 2.6). Below it, a curve
of another form prefers one model by chance: with 2, a broken power law was called by one false form in 56 to 93 % of
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
    """Models that describe a curve equally well, as far as its values decide."""

    state: GroupState

    models: tuple[Fit, ...]
    """Adequate models that the values do not rule out, lowest AICc first. Empty if no model is adequate."""
    judges: str
    """Values that decide, as in `3 seeds at 5 depths` or `15 values at 5 depths`."""
    reason: str
    """Reason why the power law is inadequate, if no model is adequate, or why the values cannot decide yet."""
    nearest: Fit | None = None
    """Model with the lowest AICc, if no model is adequate."""
    is_another_possible: bool = False
    """Whether the values do not rule out a curve that is none of the models."""

    @property
    def is_decided(self) -> bool:
        """Whether exactly one model is left, and no other curve."""
        return len(self.models) == 1 and not self.is_another_possible

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [fit.model for fit in self.models]


def preferred_models(curve: FittedGroup) -> Preference:
    """Return the models that describe a curve, by the rule of this module."""
    power = curve.power
    if curve.num_waiting:
        num_run = len(curve.run_x - {None})
        reason = f"{num_run} of {num_run + curve.num_waiting} {_places(curve)}"
        return Preference(GroupState.NOT_YET, (), "", reason)
    if power is None or len(curve.log_means) < MIN_DISTINCT_X:
        reason = (curve.note or "no fit") if power is None else inadequacy(curve, power)
        return Preference(GroupState.TOO_FEW, (), "", reason)
    count = power.n_points if power.n_seeds is None else power.n_seeds
    counted = f"{count} {'value' if power.n_seeds is None else 'seed'}{'' if count == 1 else 's'}"
    judges = f"{counted} at {len(curve.log_means)} {_places(curve)}"
    adequate = adequate_models(curve)
    ranked = sorted((fit for fit in adequate if math.isfinite(aicc_of(fit))), key=aicc_of)
    if (reach := _flat_within(power)) is not None:
        return Preference(GroupState.FLAT, (), judges, f"slope 0 within ±{reach:.2g}")
    if not ranked:  # without AICc, the power law is the only model that is compared with the values
        if power in adequate:
            return Preference(GroupState.POWER_LAW, (power,), judges, "", is_another_possible=True)
        reason = inadequacy(curve, power) or _lack_of_fit(curve)[power.model]
        return Preference(GroupState.NONE, (), judges, reason, min(curve.fits, key=aicc_of))
    best, p = ranked[0], power.p_lack_of_fit
    # without a test, AICc decides on independent values
    is_kept = power.n_seeds is not None if p is None else p >= LEVEL
    can_tell = _can_tell(curve, power)
    models = [
        fit
        for fit in ranked
        if (fit is power and is_kept)
        or aicc_of(fit) - aicc_of(best) < (_clear_aicc(best, fit) if can_tell else NO_SUPPORT)
    ]
    state = GroupState.POWER_LAW if power in models else GroupState.OTHER_FORM
    has_break = best.aicc_break is not None and best.aicc_break - aicc_of(best) < CLEAR_AICC
    return Preference(state, tuple(models), judges, "", is_another_possible=has_break or not can_tell)


def _places(curve: FittedGroup) -> str:
    """Name the x of a curve: depths, also if x is arithmetic over the depth alone."""
    return "depths" if set(curve.asked.x_names) == {"depth"} else f"values of {curve.x}"


def _can_tell(curve: FittedGroup, power: Fit) -> bool:
    """Return whether one form named alone is seldom another one, by the number of x and of replicates at each."""
    num_x = len(curve.log_means)
    num_replicates = power.n_points // num_x if power.n_seeds is None else power.n_seeds
    return any(num_replicates >= replicates and num_x >= x for replicates, x in MIN_X_TO_TELL.items())


def _flat_within(power: Fit) -> float | None:
    """Return the farther end of the exponent's interval if it includes 0 and the test accepts the power law, or None."""
    low, high, p = power.ci_low, power.ci_high, power.p_lack_of_fit
    if low is None or high is None or not low <= 0 <= high or p is None or p < LEVEL:
        return None
    return max(-low, high)


def followed_power(curve: FittedGroup) -> Fit | None:
    """Return the power law if it is among the preferred models, and None otherwise."""
    return curve.power if preferred_models(curve).state is GroupState.POWER_LAW else None


def by_request(curves: Sequence[FittedGroup]) -> dict[FitRequest, list[FittedGroup]]:
    """Return the groups of each request."""
    return grouped(curves, lambda curve: curve.asked)


def count_states(curves: Sequence[FittedGroup]) -> dict[str, int]:
    """Count the groups of a request by their state."""
    return dict(Counter(str(preferred_models(curve).state) for curve in curves))


def adequate_models(curve: FittedGroup) -> list[Fit]:
    """Return the models that are near the means, and that the test against one mean per x does not reject."""
    rejected = _lack_of_fit(curve)
    return [fit for fit in curve.fits if not inadequacy(curve, fit) and not rejected[fit.model]]


def adequate_power(curve: FittedGroup) -> Fit | None:
    """Return the power law if all x have run and it is near the means, so that its exponent describes them, or None.

    Its test may reject it, and other models may be preferred.
    """
    power = curve.power
    return None if power is None or curve.num_waiting or inadequacy(curve, power) else power


def inadequacy(curve: FittedGroup, fit: Fit) -> str:
    """Return the reason why a model is far from the means, as in `R^2 0.37`, or an empty string."""
    means = curve.log_means
    if len(means) < MIN_DISTINCT_X:
        return f"{len(means)} values of {curve.x}, at least {MIN_DISTINCT_X} needed"
    if fit.r2 is not None and fit.r2 < MIN_R2:
        return f"R^2 {fit.r2:.2f}"
    with_fit = zip(means, predict(fit, list(means)).tolist(), strict=True)
    residuals = {x: means[x] - math.log(value) if value > 0 else math.inf for x, value in with_fit}
    x, farthest = max(residuals.items(), key=lambda item: abs(item[1]))
    if abs(farthest) <= MAX_RESIDUAL_SHARE * (max(means.values()) - min(means.values())) + 1e-9:
        return ""
    if math.isinf(farthest):
        return f"the fit at {curve.x} = {x:g} is not positive"
    return f"the mean at {curve.x} = {x:g} is off by a factor {math.exp(abs(farthest)):.1f}"


def _lack_of_fit(curve: FittedGroup) -> dict[str, str]:
    """Return the p-value with which the test rejects each model, as in `lack of fit, p = 0.003`, or an empty string.

    It is corrected by Holm's procedure for the models of the curve.
    """
    tested = {fit.model: fit.p_lack_of_fit for fit in curve.fits if fit.p_lack_of_fit is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {fit.model: lack_of_fit_text(corrected.get(fit.model)) for fit in curve.fits}


def _clear_aicc(best: Fit, fit: Fit) -> float:
    """Return the difference of AICc from which the best model rules the other out."""
    contains_best = best.model == POWER.name and MODELS[fit.model].num_parameters > POWER.num_parameters
    return CLEAR_AICC if contains_best else NO_SUPPORT


def local_exponents(curve: FittedGroup) -> list[float]:
    """Return the exponents a of x^-a between neighbouring x."""
    pairs = itertools.pairwise(sorted(curve.log_means.items()))
    return [-(after - before) / math.log(high / low) for (low, before), (high, after) in pairs]


def curves_with_common_exponent(curves: Sequence[FittedGroup]) -> list[FittedGroup]:
    """Return the first curve of each request with a tested common exponent whose groups all follow a power law."""
    tested = [[curve for curve in group if curve.common is not None] for group in by_request(curves).values()]
    return [group[0] for group in tested if group and all(map(followed_power, group))]
