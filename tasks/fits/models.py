"""Fit models and the table MODELS.

Shapes: C curves on one design, N points, G groups (the distinct x, rising), R rows, P shape parameters (all but the
prefactor, the first is the exponent). Curves and rows come last.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from depthrate.tasks.fits.least_squares import Array, Shape
from depthrate.tasks.fits.model import (
    BoundedModel,
    FitParameter,
    LinearModel,
    Mask,
    Model,
    last_above,
    never_unless,
)
from depthrate.tasks.fits.points import FitError

LOG_REACH = 100.0
"""Bound on a log(x_max / x_min) in PowerFloor, whose exponent may be undetermined by the points: 43 decades of y."""
LOG_LARGEST = 500.0
"""Bound on a |log x| in PowerFloor, so that c stays a float when the x are close together and far from 1."""
LOG_FLOAT = 300.0
"""Bound on a log(x_max / x_min) for all points: the square of its exponential is still a float."""
MAX_CORRECTION = 0.25
"""Bound on b / x at the largest x in PowerCorrection. A larger b there is part of the exponent: x^-a b/x is x^-(a + 1)."""
STEEPEST = 1e6
"""Bound on LogLinear's exponent if positivity sets none (rising y and all x above 1, with limit y = c log x)."""


class Power(LinearModel):
    """Power law y = c x^-a, the reference for all other models."""

    name = "power"
    formula = "c x^{-a}"
    has_theory = True

    @property
    def min_distinct_x(self) -> int:
        """Minimum number of distinct x: two, since the power law is always fitted."""
        return 2

    def basis(self, x_G: Array) -> Array:
        """Return the column -log x of log y = log c - a log x."""
        return -np.log(x_G)[:, None]

    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return c x^-a."""
        return np.asarray(prefactor * x_N**-exponent)

    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        return never_unless(theta_PR[0] > 0, (level_R - log_target) / theta_PR[0])


class PowerFloor(BoundedModel):
    """y = c x^-a + floor."""

    name = "power_floor"
    formula = "c x^{-a} + floor"
    parameters = (FitParameter("floor", "floor"),)
    has_theory = True
    values_are_told = True

    def curves(self, x_G: Array, log_x_G: Array, slope_C: Array) -> tuple[Shape, Array, Array, Array]:
        """Write y = c (x^-a + t x_ref^-a) with theta = (a, tau), t = tau up to 1 and t = exp(tau - 1) above.

        x_ref is the x where the power law is lowest, so t is the floor in units of the lowest value. t is linear near
        zero: the squares keep a slope there, so a fit can reach a floor of zero and leave it again (impossible with
        log t). t is exponential above 1: if only the first x lie above the floor, log t rises with a along a straight
        valley.
        """

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            (a_R, tau_R), curve_QGR = theta_PR, np.empty((3, len(log_x_G), theta_PR.shape[1]))
            sum_GR, by_a_GR, by_tau_GR = curve_QGR  # in place: resampling spends most of its time here
            np.subtract(ref_R, log_x_G[:, None], out=by_a_GR)
            np.exp(np.multiply(by_a_GR, a_R, out=sum_GR), out=sum_GR)
            by_a_GR *= sum_GR
            t_R, slope_R = _floor_ratio(tau_R)
            sum_GR += t_R
            by_a_GR /= sum_GR
            np.divide(slope_R, sum_GR, out=by_tau_GR)
            np.log(sum_GR, out=sum_GR)
            sum_GR -= a_R * ref_R
            return curve_QGR

        span, largest = log_x_G[-1] - log_x_G[0], np.abs(log_x_G).max()
        # Start from the power law, then from steeper ones that meet their floor at 0.4 of the way back from x_ref.
        steepness_C = np.copysign(np.maximum(np.abs(slope_C), 0.1 / span), slope_C)
        starts = [np.stack([slope_C, np.zeros_like(slope_C)])]
        for k in (1, 2, 4, 8):
            starts.append(np.stack([k * steepness_C, 1 + 0.4 * k * np.abs(steepness_C) * span]))
        # The power law is always inside the bounds, unless it spans more than 130 decades.
        steepest_C = np.maximum(min(LOG_REACH / span, LOG_LARGEST / largest), 2 * np.abs(slope_C))
        steepest_C = np.minimum(steepest_C, LOG_FLOAT / span)
        lower_PC = np.stack([-steepest_C, np.zeros_like(slope_C)])
        upper_PC = np.stack([steepest_C, np.full_like(slope_C, 1 + LOG_REACH)])
        return shape, np.clip(starts, lower_PC, upper_PC), lower_PC, upper_PC

    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return c x^-a + floor."""
        return np.asarray(prefactor * x_N**-exponent + others["floor"])

    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        """Subtract the floor from the target and solve the power law for log x."""
        a_R = theta_PR[0]
        share_R = np.exp(self._log_floor(theta_PR, level_R, ref_R) - log_target)
        left_R = log_target + np.log1p(-np.minimum(share_R, 1.0))
        return never_unless((a_R > 0) & (share_R < 1), (level_R - left_R) / a_R)

    def others(self, theta_PR: Array, level_R: Array, ref_R: Array) -> dict[str, Array]:
        """Return the floor, >= 0."""
        return {"floor": np.exp(self._log_floor(theta_PR, level_R, ref_R))}

    @staticmethod
    def _log_floor(theta_PR: Array, level_R: Array, ref_R: Array) -> Array:
        return np.asarray(level_R - theta_PR[0] * ref_R + np.log(_floor_ratio(theta_PR[1])[0]))


def _floor_ratio(tau: Array) -> tuple[Array, Array]:
    """Return t, the floor in units of the power law's lowest value, and its derivative with respect to tau."""
    slope = np.exp(np.maximum(tau, 1.0) - 1)
    return np.minimum(tau, 1.0) * slope, slope


class PowerLog(LinearModel):
    """y = c x^-a (log x)^b."""

    name = "power_log"
    formula = "c x^{-a} (log x)^b"
    parameters = (FitParameter("log_power", "b"),)
    has_theory = True

    def basis(self, x_G: Array) -> Array | None:
        """Return the columns -log x and log log x, or None if an x is not above 1."""
        log_x_G = np.log(x_G)
        return None if x_G[0] <= 1 else np.stack([-log_x_G, np.log(log_x_G)], axis=1)

    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return c x^-a (log x)^b."""
        return np.asarray(prefactor * x_N**-exponent * np.log(x_N) ** others["log_power"])

    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        """Solve drop - a v + b log v = 0 for v = log x on the branch that falls, by bisection."""
        (a_R, b_R), drop_R = theta_PR, level_R - log_target
        falls_R = a_R > 0
        low_R = np.where(falls_R, np.maximum(b_R / np.where(falls_R, a_R, 1.0), 1e-12), 1.0)

        def above(v_R: Array) -> Mask:
            return np.asarray(drop_R - a_R * v_R + b_R * np.log(v_R) > 0, dtype=np.bool_)

        return never_unless(falls_R, last_above(above, low_R, np.full_like(low_R, 1e4)))


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

    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return c x^-a (1 + b/x)."""
        return np.asarray(prefactor * x_N**-exponent * (1 + others["correction"] / x_N))

    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        """Solve level - a v + log(1 + b e^-v) = target for v = log x on the branch that falls, by bisection."""
        a_R, b_R = theta_PR
        peak_R = np.log(-b_R * (1 + a_R) / a_R)
        low_R = np.where((b_R < 0) & (a_R > 0), peak_R, -50.0)

        def above(v_R: Array) -> Mask:
            return np.asarray(level_R - a_R * v_R + np.log1p(b_R * np.exp(-v_R)) > log_target, dtype=np.bool_)

        return never_unless(a_R > 0, last_above(above, low_R, np.full_like(low_R, 1e4)))


class Exponential(LinearModel):
    """y = c exp(-a x)."""

    name = "exponential"
    formula = "c e^{-a x}"

    def basis(self, x_G: Array) -> Array:
        """Return the column -x of log y = log c - a x."""
        return -x_G[:, None]

    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return c exp(-a x)."""
        return np.asarray(prefactor * np.exp(-exponent * x_N))

    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        x_R = (level_R - log_target) / theta_PR[0]
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

    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return c (1 - a log x), which may fall below zero beyond the fitted x."""
        return np.asarray(prefactor * (1 - exponent * np.log(x_N)))

    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        return never_unless(theta_PR[0] > 0, (1 - np.exp(log_target - level_R)) / theta_PR[0])


POWER = Power()
MODELS: dict[str, Model] = {
    model.name: model for model in (POWER, PowerFloor(), PowerCorrection(), PowerLog(), Exponential(), LogLinear())
}
"""Models by name, in the order of the fits table."""


def models_named(names: Iterable[str]) -> list[Model]:
    """Return the models with these names.

    Raises:
        FitError: A name is unknown.
    """
    names = list(names)
    if unknown := [name for name in names if name not in MODELS]:
        raise FitError(f"models has {unknown}, expected some of {', '.join(MODELS)}.")
    return [MODELS[name] for name in names]
