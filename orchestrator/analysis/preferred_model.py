"""Select the model that describes a fitted curve: one rule for the terminal, the report and LaTeX.

A model is adequate if R^2 of log values is at least MIN_R2, no log mean at an x is farther from it than MAX_RESIDUAL_SHARE
of the range of all log means, and x has at least MIN_DISTINCT_X values. Another model replaces the power law if its AICc is
clearly lower and, where seeds are known, whole seeds reject the power law.
"""

import itertools
import math
from collections.abc import Sequence

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.fits.rates import predict

MIN_R2 = 0.9
MAX_RESIDUAL_SHARE = 1 / 3
MIN_DISTINCT_X = 4
CLEAR_AICC = 2.0
"""Difference of AICc below which two models are indistinguishable (Burnham and Anderson 2002, section 2.6)."""
LEVEL = 0.05
"""Significance level for rejecting the power law over whole seeds. AICc alone accepts bends that are due to chance."""
MAX_LOCAL_EXPONENTS = 8
"""Maximum number of local exponents listed in a sentence. If there are more, it gives only their range."""


def preferred_model(curve: FittedCurve) -> RateFit | None:
    """Return the power law, or a clearly better model. Return None if neither is adequate."""
    candidates = (clear_rival(curve), curve.power)
    return next((fit for fit in candidates if fit is not None and not inadequacy(curve, fit)), None)


def preferred_names(curve: FittedCurve) -> list[str]:
    """Return the name of the preferred model and of an indistinguishable rival. Empty if no model is adequate."""
    best, rival = preferred_model(curve), best_rival(curve)
    if best is None:
        return []
    is_tie = best.model == POWER.name and rival is not None and abs(rival[1]) < CLEAR_AICC
    return [best.model, rival[0].model] if is_tie and rival is not None else [best.model]


def adequate_power(curve: FittedCurve) -> RateFit | None:
    """Return the power law if it is adequate, and None otherwise."""
    power = curve.power
    return None if power is None or inadequacy(curve, power) else power


def inadequacy(curve: FittedCurve, fit: RateFit) -> str:
    """Return the reason why a model is inadequate, as in `R^2 0.37`, or an empty string."""
    means = _log_means(curve)
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


def clear_rival(curve: FittedCurve) -> RateFit | None:
    """Return the model that clearly beats the power law by AICc, or None.

    Over whole seeds, the means must also deviate from a power law by more than chance.
    """
    power, rival = curve.power, best_rival(curve)
    if power is None or rival is None or rival[1] >= -CLEAR_AICC:
        return None
    p = curve.p_lack_of_fit
    if power.n_seeds is not None and (p is None or p >= LEVEL):  # too few whole seeds to reject a model
        return None
    return rival[0]


def best_rival(curve: FittedCurve) -> tuple[RateFit, float] | None:
    """Return the best model other than the power law, and its AICc minus the power law's."""
    power = curve.power
    others = [fit for fit in curve.fits if fit.model != POWER.name and _is_finite(fit.aicc)]
    if power is None or not _is_finite(power.aicc) or not others:
        return None
    best = min(others, key=lambda fit: fit.aicc or 0.0)
    return best, (best.aicc or 0.0) - (power.aicc or 0.0)


def local_exponents_text(curve: FittedCurve) -> str:
    """Return the exponents a of x^-a between neighbouring x, as in `0.21, 0.45`, or their range if there are many."""
    pairs = itertools.pairwise(sorted(_log_means(curve).items()))
    exponents = [-(after - before) / math.log(high / low) for (low, before), (high, after) in pairs]
    if len(exponents) > MAX_LOCAL_EXPONENTS:
        return f"{min(exponents):z.2f} to {max(exponents):z.2f}"
    return ", ".join(f"{exponent:z.2f}" for exponent in exponents)


def curves_with_common_exponent(curves: Sequence[FittedCurve]) -> list[FittedCurve]:
    """Return the first curve of each request with a tested common exponent and adequate power laws in all groups."""
    requests: dict[str, list[FittedCurve]] = {}
    for curve in curves:
        requests.setdefault(str(curve.asked), []).append(curve)
    tested = [[curve for curve in group if curve.common is not None] for group in requests.values()]
    return [group[0] for group in tested if group and all(map(adequate_power, group))]


def _log_means(curve: FittedCurve) -> dict[float, float]:
    """Return the mean of log y at each x, over the positive values."""
    logs: dict[float, list[float]] = {}
    for row in curve.rows:
        if row["y"] > 0:
            logs.setdefault(float(row["x"]), []).append(math.log(row["y"]))
    return {x: math.fsum(values) / len(values) for x, values in logs.items()}


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
