"""Fit models and the tables of them: FORMS has all forms, MODELS those that are compared on a curve.

Shapes: K variables, C curves on one design, N points, G groups (the distinct x, rising), R rows, P shape parameters (exponents
first), S starting points, Q terms of a sum, T some of them. Curves and rows come
last but where matrices are solved.
Sources: Golub and Pereyra (1973), The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
separate (starts of a sum).
"""

import itertools
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from depthrate.tasks.fits import MAX_VARIABLES
from depthrate.tasks.fits.least_squares import Array, Shape
from depthrate.tasks.fits.model import (
    BoundedModel,
    CurveFamily,
    FitParameter,
    LinearModel,
    Mask,
    Model,
    exp,
    last_above,
    never_unless,
    power_slope,
)
from depthrate.tasks.fits.points import FitError, Points
from depthrate.tasks.parameters import nearest

LOG_REACH = 100.0
"""Bound on a log(x_max / x_min) in PowerFloor of one variable, whose exponent may not be determined by the points: 43 decades
of y."""
LOG_LARGEST = 500.0
"""Bound on a |log x| there, so that c stays a float when the x are close together and far from 1."""
LOG_FLOAT = 300.0
"""Bound on a log(x_max / x_min) for all points: the square of its exponential is still a float."""
MAX_CORRECTION = 0.25
"""Bound on b / x at the largest x in PowerCorrection. A larger b there is part of the exponent: x^-a b/x is x^-(a + 1)."""
STEEPEST = 1e6
"""Bound on LogLinear's exponent if positivity sets none (rising y and all x above 1, with limit y = c log x)."""
START_EXPONENTS = (0.1, 0.35, 0.8, 1.6)
"""Exponents of the starts of a sum in several variables, for each variable."""
START_FACTORS = (1, 2, 4, 8)
"""Exponents of the starts in one variable, in units of the power law's."""
MIN_LOG_COEFFICIENT = -60.0
"""Logarithm of a coefficient that counts as zero: smaller ones change no value in float64."""
MAX_LOG_COEFFICIENT = 300.0
MAX_EXPONENT = 30.0
"""Bound on the exponents of a sum in several variables."""


class Power(LinearModel):
    """Power law y = c prod x_k^-a_k, the reference for all other models."""

    name = "power"
    formula = "c x^{-a}"
    has_theory = True
    max_variables = MAX_VARIABLES

    @property
    def min_distinct_x(self) -> int:
        """Minimum number of distinct x: two, since the power law is always fitted."""
        return 2

    def basis(self, x_KG: Array) -> Array:
        """Return the columns -log x_k of log y = log c - sum a_k log x_k."""
        return -np.log(x_KG).T

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return c prod x_k^-a_k."""
        return np.asarray(coefficients[0] * _powers(x_K, exponents).prod(0))

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        return never_unless(theta_PR[0] > 0, (log_c_R - log_target) / theta_PR[0])


class PowerFloor(Model):
    """y = sum c_k x_k^-a_k + floor, with theta = (a_1 ... a_K, log c_1 ... log c_K, floor).

    Variables and y are divided by their geometric means, for good conditioning. The floor is a factor of no other
    parameter: the squares keep a slope in it at zero, so that a fit can reach a floor of zero and leave it again.
    """

    name = "power_floor"
    formula = "c x^{-a} + floor"
    parameters = (FitParameter("floor", "floor"),)
    has_theory = True
    values_are_told = True
    max_variables = MAX_VARIABLES

    def num_parameters_of(self, num_variables: int) -> int:
        """Return the number of parameters: a coefficient and an exponent for each variable, and the floor."""
        return 2 * num_variables + 1

    def family(self, points: Points) -> CurveFamily:
        """Build the curves on these points."""
        centre_K = (np.log(points.x_KG) @ points.count_G) / points.count_G.sum()
        log_x_KG, k = np.log(points.x_KG) - centre_K[:, None], len(centre_K)
        ref_C = (points.count_G @ points.mean_GC) / points.count_G.sum()

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            curve_QGR = np.empty((2 * k + 2, log_x_KG.shape[1], theta_PR.shape[1]))
            term_KGR = curve_QGR[1 + k : 1 + 2 * k]  # in place: resampling spends most of its time here
            np.multiply(log_x_KG[..., None], theta_PR[:k, None], out=term_KGR)
            np.subtract(theta_PR[k : 2 * k, None], term_KGR, out=term_KGR)
            with np.errstate(over="ignore"):
                np.exp(term_KGR, out=term_KGR)
            total_GR = np.add.reduce(term_KGR, axis=0, out=curve_QGR[0])
            total_GR += theta_PR[2 * k]
            np.divide(term_KGR, total_GR, out=term_KGR)
            np.multiply(term_KGR, -log_x_KG[..., None], out=curve_QGR[1 : 1 + k])
            np.divide(1.0, total_GR, out=curve_QGR[1 + 2 * k])
            np.log(total_GR, out=total_GR)
            total_GR += ref_R
            return curve_QGR

        log_y_GC, zero_1C = points.mean_GC - ref_C, np.zeros((1, len(ref_C)))
        exponents_SKC, steepest_KC = _exponents_of_starts(points)
        a_KR, log_y_GR = np.concatenate([*exponents_SKC], axis=1), np.tile(log_y_GC, len(exponents_SKC))
        starts = np.split(_starts_of_sum(log_x_KG, log_y_GR, a_KR), len(exponents_SKC), axis=1)
        if k == 1:  # first the power law, so that a floor must improve the fit
            starts.insert(0, np.concatenate([power_slope(points)[None], zero_1C, zero_1C]))
        lower_PC = np.concatenate([-steepest_KC, np.full_like(steepest_KC, MIN_LOG_COEFFICIENT), zero_1C])
        upper_PC = np.concatenate([steepest_KC, np.full_like(steepest_KC, MAX_LOG_COEFFICIENT), zero_1C + np.inf])
        starts_SPC = np.clip(starts, lower_PC, upper_PC)
        log_c_LP = np.concatenate([np.diag(centre_K), np.eye(k), np.zeros((k, 1))], axis=1)
        return CurveFamily(self, shape, None, starts_SPC, lower_PC, upper_PC, ref_C, has_level=False, log_c_LP=log_c_LP)

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return sum c_k x_k^-a_k + floor."""
        return np.asarray(np.tensordot(coefficients, _powers(x_K, exponents), 1) + others["floor"])

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        """Subtract the floor from the target and solve the power law for log x."""
        a_R, share_R = theta_PR[0], theta_PR[-1] * np.exp(ref_R - log_target)
        left_R = log_target + np.log1p(-np.minimum(share_R, 1.0))
        return never_unless((a_R > 0) & (share_R < 1), (log_c_R - left_R) / a_R)

    def others(self, theta_PR: Array, ref_R: Array) -> dict[str, Array]:
        """Return the floor, >= 0."""
        return {"floor": theta_PR[-1] * exp(ref_R)}


def _exponents_of_starts(points: Points) -> tuple[Array, Array]:
    """Return the exponents of the starts of a sum, [S, K, C], and their bounds, [K, C]."""
    k, num_curves = len(points.x_KG), points.mean_GC.shape[1]
    if k > 1:
        exponents_SK = np.array([*itertools.product(START_EXPONENTS, repeat=k)])
        return np.tile(exponents_SK[..., None], num_curves), np.full((k, num_curves), MAX_EXPONENT)
    log_x_G, slope_C = np.log(points.x_G), power_slope(points)
    span, largest = log_x_G[-1] - log_x_G[0], np.abs(log_x_G).max()
    # The power law is inside the bounds, unless it spans more than 130 decades.
    steepest_C = np.maximum(min(LOG_REACH / span, LOG_LARGEST / largest), 2 * np.abs(slope_C))
    steepest_C = np.minimum(steepest_C, LOG_FLOAT / span)
    steepness_C = np.copysign(np.maximum(np.abs(slope_C), 0.1 / span), slope_C)
    exponents_SC = np.clip(np.outer(START_FACTORS, steepness_C), -steepest_C, steepest_C)
    return exponents_SC[:, None], steepest_C[None]


def _starts_of_sum(log_x_KG: Array, log_y_GR: Array, a_KR: Array) -> Array:
    """Return starts [P, R]: c and floor >= 0 by least squares of relative errors, with these exponents."""
    log_QGR = np.concatenate([-a_KR[:, None] * log_x_KG[..., None], np.zeros_like(log_y_GR)[None]]) - log_y_GR
    largest_QR = log_QGR.max(1)
    columns_QGR = np.exp(log_QGR - largest_QR[:, None])
    gram_RQQ, target_RQ = np.einsum("pgr,qgr->rpq", columns_QGR, columns_QGR), columns_QGR.sum(1).T
    best_RQ, gain_R = np.zeros_like(target_RQ), np.zeros(len(target_RQ))
    # Terms that are positive at the minimum within bounds have their minimum without bounds there: try each choice of terms.
    for num_terms in range(1, target_RQ.shape[1] + 1):
        for terms in itertools.combinations(range(target_RQ.shape[1]), num_terms):
            at = np.array(terms)
            inverse_RTT = np.linalg.pinv(gram_RQQ[:, at[:, None], at], hermitian=True)
            solved_RQ = np.zeros_like(target_RQ)
            solved_RQ[:, at] = np.einsum("rst,rt->rs", inverse_RTT, target_RQ[:, at])
            reached_R = (solved_RQ * target_RQ).sum(1)
            is_better_R = (solved_RQ >= 0).all(1) & (reached_R > gain_R)
            gain_R = np.where(is_better_R, reached_R, gain_R)
            best_RQ = np.where(is_better_R[:, None], solved_RQ, best_RQ)
    # a coefficient of zero has no slope in its logarithm, so it starts at a share of the whole
    coefficients_KR = np.maximum(best_RQ.T[:-1], 1e-3 / columns_QGR[:-1].mean(1))
    return np.concatenate(
        [a_KR, np.log(coefficients_KR) - largest_QR[:-1], (best_RQ.T[-1] * np.exp(-largest_QR[-1]))[None]]
    )


def _powers(x_K: Array, exponents: Sequence[float]) -> Array:
    """Return x_k^-a_k, [K, ...]."""
    return np.stack([x**-a for x, a in zip(x_K, exponents, strict=True)])


class PowerLog(LinearModel):
    """y = c (log x_1)^b prod x_k^-a_k."""

    name = "power_log"
    formula = "c x^{-a} (log x)^b"
    parameters = (FitParameter("log_power", "b"),)
    has_theory = True
    max_variables = MAX_VARIABLES
    needs_x_above_one = True

    def basis(self, x_KG: Array) -> Array | None:
        """Return the columns -log x_k and log log x_1, or None if an x_1 is not above 1."""
        log_x_KG = np.log(x_KG)
        return None if x_KG[0].min() <= 1 else np.concatenate([-log_x_KG, np.log(log_x_KG[:1])]).T

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return c (log x_1)^b prod x_k^-a_k."""
        logarithm = np.log(x_K[0]) ** others["log_power"]
        return np.asarray(coefficients[0] * _powers(x_K, exponents).prod(0) * logarithm)

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        """Solve drop - a v + b log v = 0 for v = log x on the branch that falls, by bisection."""
        (a_R, b_R), drop_R = theta_PR, log_c_R - log_target
        falls_R = a_R > 0
        low_R = np.where(falls_R, np.maximum(b_R / np.where(falls_R, a_R, 1.0), 1e-12), 1.0)

        def above(v_R: Array) -> Mask:
            return np.asarray(drop_R - a_R * v_R + b_R * np.log(v_R) > 0, dtype=np.bool_)

        return never_unless(falls_R, last_above(above, low_R, np.full_like(low_R, 1e4)))


class PowerLog2(LinearModel):
    """y = c (log x_1)^2 prod x_k^-a_k."""

    name = "power_log2"
    formula = "c x^{-a} (log x)^2"
    parameters = (FitParameter("log_power", "b"),)
    has_theory = True
    max_variables = MAX_VARIABLES
    needs_x_above_one = True
    fixed = MappingProxyType({"log_power": 2.0})

    def basis(self, x_KG: Array) -> Array | None:
        """Return the columns -log x_k, or None if an x_1 is not above 1."""
        return None if x_KG[0].min() <= 1 else -np.log(x_KG).T

    def offset(self, x_KG: Array) -> Array:
        """Return 2 log log x_1."""
        return np.asarray(2 * np.log(np.log(x_KG[0])))

    value = PowerLog.value

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        return PowerLog.log_x_at(
            POWER_LOG, np.stack([theta_PR[0], np.full_like(theta_PR[0], 2.0)]), log_c_R, ref_R, log_target
        )


class Proportional(LinearModel):
    """y = c / prod x_k. With x = 1 / bound, one constant times a whole bound."""

    name = "proportional"
    formula = "c / x"
    max_variables = MAX_VARIABLES
    has_exponents = False

    @property
    def num_parameters(self) -> int:
        """Number of parameters: c."""
        return 1

    def num_parameters_of(self, num_variables: int) -> int:
        """Return the number of parameters: c."""
        return 1

    def basis(self, x_KG: Array) -> Array:
        """Return no column."""
        return np.empty((x_KG.shape[1], 0))

    def offset(self, x_KG: Array) -> Array:
        """Return -sum log x_k."""
        return np.asarray(-np.log(x_KG).sum(0))

    value = Power.value

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        return log_c_R - log_target


class PowerCorrection(BoundedModel):
    """y = c x^-a (1 + b/x), a power law with its first correction to scaling."""

    name = "power_correction"
    formula = "c x^{-a} (1 + b/x)"
    parameters = (FitParameter("correction", "b"),)
    has_theory = True
    values_are_told = True

    def curves(self, x_G: Array, log_x_G: Array, slope_C: Array) -> tuple[Shape, Array, Array, Array]:
        """Write log y = log c - a log x + log(1 + b/x) with theta = (a, b), b > -x at every x."""
        log_x_G1, x_G1 = log_x_G[:, None], x_G[:, None]

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            a_R, b_R = theta_PR
            by_a_GR = np.broadcast_to(-log_x_G1, (len(x_G), theta_PR.shape[1]))
            return np.stack([by_a_GR * a_R + np.log1p(b_R / x_G1), by_a_GR, 1 / (x_G1 + b_R)])

        lower, upper = -x_G[0] * (1 - 1e-6), MAX_CORRECTION * x_G[-1]
        starts = [(0.0, 0.0), (-0.2, x_G[0]), (-0.5, x_G[-1]), (0.2, 0.5 * lower), (0.4, 0.9 * lower)]
        starts_SPC = np.stack([np.stack([slope_C + more, np.full_like(slope_C, b)]) for more, b in starts])
        steepest_C = 10 * np.abs(slope_C) + 10
        lower_PC = np.stack([-steepest_C, np.full_like(slope_C, lower)])
        return shape, starts_SPC, lower_PC, np.stack([steepest_C, np.full_like(slope_C, upper)])

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return c x^-a (1 + b/x)."""
        return np.asarray(coefficients[0] * x_K[0] ** -exponents[0] * (1 + others["correction"] / x_K[0]))

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        """Solve level - a v + log(1 + b e^-v) = target for v = log x on the branch that falls, by bisection."""
        a_R, b_R = theta_PR
        peak_R = np.log(-b_R * (1 + a_R) / a_R)
        low_R = np.where((b_R < 0) & (a_R > 0), peak_R, -50.0)

        def above(v_R: Array) -> Mask:
            return np.asarray(log_c_R - a_R * v_R + np.log1p(b_R * np.exp(-v_R)) > log_target, dtype=np.bool_)

        return never_unless(a_R > 0, last_above(above, low_R, np.full_like(low_R, 1e4)))


class Exponential(LinearModel):
    """y = c exp(-a x)."""

    name = "exponential"
    formula = "c e^{-a x}"

    def basis(self, x_KG: Array) -> Array:
        """Return the column -x of log y = log c - a x."""
        return -x_KG.T

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return c exp(-a x)."""
        return np.asarray(coefficients[0] * np.exp(-exponents[0] * x_K[0]))

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        x_R = (log_c_R - log_target) / theta_PR[0]
        return never_unless((theta_PR[0] > 0) & (x_R > 0), np.log(x_R))


class LogLinear(BoundedModel):
    """y = c (1 - a log x)."""

    name = "log_linear"
    formula = "c (1 - a log x)"

    def curves(self, x_G: Array, log_x_G: Array, slope_C: Array) -> tuple[Shape, Array, Array, Array]:
        """Write log y = log c + log(1 - a log x), theta = (a), with y > 0 at every x (and at x = 1, where y = c)."""

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            value_GR = 1 - theta_PR * log_x_G[:, None]
            return np.stack([np.log(value_GR), -log_x_G[:, None] / value_GR])

        inside = 1 - 1e-9
        lower = inside / log_x_G[0] if log_x_G[0] < 0 else -STEEPEST
        upper = inside / log_x_G[-1] if log_x_G[-1] > 0 else STEEPEST
        bounds = [bound for bound in (lower, upper) if abs(bound) < STEEPEST]
        starts = [slope_C, *(np.full_like(slope_C, share * bound) for bound in bounds for share in (0.5, 0.99))]
        lower_PC, upper_PC = np.full((1, len(slope_C)), lower), np.full((1, len(slope_C)), upper)
        return shape, np.clip(np.stack(starts)[:, None], lower_PC, upper_PC), lower_PC, upper_PC

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return c (1 - a log x), which may fall below zero beyond the fitted x."""
        return np.asarray(coefficients[0] * (1 - exponents[0] * np.log(x_K[0])))

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        return never_unless(theta_PR[0] > 0, (1 - np.exp(log_target - log_c_R)) / theta_PR[0])


POWER, POWER_LOG = Power(), PowerLog()
MODELS: dict[str, Model] = {
    model.name: model for model in (POWER, PowerFloor(), PowerCorrection(), POWER_LOG, Exponential(), LogLinear())
}
"""Models that are compared on a curve of one variable, by name, in the order of the fits table."""
FORMS: ChainMap[str, Model] = ChainMap({model.name: model for model in (PowerLog2(), Proportional())}, MODELS)
"""All forms by name. Each allows all losses, and up to `max_variables` variables."""


def forms_of(num_variables: int) -> dict[str, Model]:
    """Return the forms that allow this number of variables, by name."""
    return {name: model for name, model in FORMS.items() if model.max_variables >= num_variables}


def forms_named(names: Iterable[str], num_variables: int = 1) -> list[Model]:
    """Return the forms with these names.

    Args:
        names: Names of the forms.
        num_variables: Number of variables.

    Raises:
        FitError: There is no name, or one is unknown or that of a form with fewer variables.
    """
    allowed, names = forms_of(num_variables), list(names)
    expected = f"expected some of {', '.join(allowed)}"
    if not names:
        raise FitError(f"forms is empty, {expected}.")
    for name in names:
        if name not in FORMS:
            raise FitError(f"form {name!r} is unknown{nearest(name, allowed)}, {expected}.")
        if name not in allowed:
            at_most = "one variable" if FORMS[name].max_variables == 1 else f"{FORMS[name].max_variables} variables"
            raise FitError(f"form {name!r} takes {at_most}, and there are {num_variables}: {expected}.")
    return [FORMS[name] for name in names]
