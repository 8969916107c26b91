"""What the rule for preferred forms says of the groups of a fit request over one variable."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.preference import GroupState, why_far, why_inadequate
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.fit import Fit


def followed_power(curve: FittedGroup) -> Fit | None:
    """Return the power law if it is among the preferred models, and None otherwise."""
    return curve.power if curve.preference.state is GroupState.POWER_LAW else None


def by_request(curves: Sequence[FittedGroup]) -> dict[FitRequest, list[FittedGroup]]:
    """Return the groups of each request."""
    return grouped(curves, lambda curve: curve.asked)


def count_states(curves: Sequence[FittedGroup]) -> dict[str, int]:
    """Count the groups of a request by their state."""
    return dict(Counter(str(curve.preference.state) for curve in curves))


def adequate_models(curve: FittedGroup) -> list[Fit]:
    """Return the adequate models of a curve."""
    reasons = why_inadequate(curve.fits, curve.log_means, [curve.x])
    return [fit for fit in curve.fits if not reasons[fit.form]]


def adequate_power(curve: FittedGroup) -> Fit | None:
    """Return the power law if all x have run and it is near the means, so that its exponent describes them, or None.

    Its test may reject it, and other models may be preferred.
    """
    power = curve.power
    return None if power is None or curve.num_waiting or inadequacy(curve, power) else power


def inadequacy(curve: FittedGroup, fit: Fit) -> str:
    """Return the reason why a model is far from the means, as in `R^2 0.37`, or an empty string."""
    return why_far(fit, curve.log_means, [curve.x])


def local_exponents(curve: FittedGroup) -> list[float]:
    """Return the exponents a of x^-a between neighbouring x."""
    means = sorted((x, mean) for (x,), mean in curve.log_means.items())
    return [-(after - before) / math.log(high / low) for (low, before), (high, after) in itertools.pairwise(means)]


def curves_with_common_exponent(curves: Sequence[FittedGroup]) -> list[FittedGroup]:
    """Return the first curve of each request with a tested common exponent whose groups all follow a power law."""
    tested = [[curve for curve in group if curve.common is not None] for group in by_request(curves).values()]
    return [group[0] for group in tested if group and all(map(followed_power, group))]
