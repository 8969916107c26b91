"""Values of many curves, checked, weighted and gathered by x: the input of every fit.

Shapes: C curves on one design (the same x, the same seeds), N points, G groups (the distinct x, rising), S seeds. Curves
come last.
Source: Carroll and Ruppert, Transformation and Weighting (1988), 3.2 (weights).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from depthrate.tasks.data.labels import check_dense, is_missing
from depthrate.tasks.fits.least_squares import Array

WEIGHTINGS = ("equal", "spread", "robust")
CLIP_AT = 2.5
"""Maximum distance from the group median for `robust`, in standard deviations (estimated from the median distance)."""
STEEPEST_SPREAD = 8.0
"""Maximum power of x in the variance: x^8 is a factor of 256 from one depth to twice that depth."""
MAX_WEIGHT_RATIO = 1e10
"""Maximum ratio of two weights. Above some 1e20 the least squares of a power law lose all digits."""
EXACT_FIT_RMS = 1e-12
"""Maximum RMS residual in log space that counts as rounding: curves that fit the points this well are equal."""


class FitError(ValueError):
    """Points that cannot be fitted. The message names the values and the requirement."""


@dataclass(frozen=True)
class Points:
    """C curves at the same x, gathered by x. Least squares uses group means and masses, `within_C` holds the rest."""

    x_G: Array
    count_G: Array
    group_N: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Group of each point, rising."""
    mean_GC: Array
    """Group means of log y."""
    deviation_NC: Array
    """log y minus its group mean, rising within a group."""
    weight_GC: Array
    """Weight of one value. The mean over the points is 1."""
    num_noise_parameters: int
    """Number of noise parameters: its variance and, for `spread` weights, the variance's power of x."""
    seed_N: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
    """Seed number of each point, from 0. None for independent values."""

    @property
    def num_seeds(self) -> int:
        """Number of seeds S, 0 for independent values."""
        return 0 if self.seed_N is None else int(self.seed_N.max()) + 1

    def select(self, curves: slice) -> Points:
        """Select some of the curves."""
        mean_GC, deviation_NC, weight_GC = (
            part[:, curves] for part in (self.mean_GC, self.deviation_NC, self.weight_GC)
        )
        return replace(self, mean_GC=mean_GC, deviation_NC=deviation_NC, weight_GC=weight_GC)

    @property
    def mass_GC(self) -> Array:
        """Weight of a group mean."""
        return self.count_G[:, None] * self.weight_GC

    @property
    def within_C(self) -> Array:
        """Weighted squares around the group means, independent of the fitted curve."""
        return np.asarray((self.deviation_NC**2 * self.weight_GC[self.group_N]).sum(0))

    @property
    def num_points(self) -> int:
        """Number of points N."""
        return len(self.group_N)


def gather(x_N: Array, y_CN: Array, weights: str, seeds: Sequence[Hashable] | None = None) -> Points:
    """Gather curves by x and weight their values.

    Args:
        x_N: Positive x values, shape [N].
        y_CN: Positive y values, shape [C, N].
        weights: Weighting, see `fit_many`.
        seeds: Seed of each value, length N. None for independent values.

    Raises:
        FitError: See `fit_many`.
    """
    _check(x_N, y_CN, weights)
    seed_N = None
    if seeds is not None:
        if len(seeds) != len(x_N):
            raise FitError(f"seeds has {len(seeds)} entries, expected {len(x_N)}, one per value, or None.")
        numbers = {seed: number for number, seed in enumerate(dict.fromkeys(seeds))}
        if missing := [seed for seed in numbers if is_missing(seed)]:
            raise FitError(
                f"seeds has the entry {missing[0]!r}, expected int, str or other values that equal themselves. Remove points "
                "without a seed, and convert arrays with tolist()."
            )
        seed_N = np.array([numbers[seed] for seed in seeds], dtype=np.int64)
    order_N = np.argsort(x_N, kind="stable") if seed_N is None else np.lexsort((seed_N, x_N))
    x_G, group_N, count_G = np.unique(x_N[order_N], return_inverse=True, return_counts=True)
    groups = [np.flatnonzero(group_N == g) for g in range(len(x_G))]
    log_y_NC = np.log(y_CN.T[order_N])
    if seed_N is None:  # makes sums and resamples independent of the order of the points
        log_y_NC = np.concatenate([np.sort(log_y_NC[members], axis=0) for members in groups])
    else:
        seed_N = seed_N[order_N]
    if weights == "robust":
        log_y_NC = clip_outliers(log_y_NC, group_N)
    mean_GC = np.stack([log_y_NC[members].mean(0) for members in groups])
    deviation_NC = log_y_NC - mean_GC[group_N]
    counts_G = count_G.astype(np.float64)
    weight_GC, num_noise_parameters = np.ones_like(mean_GC), 1
    if weights == "spread":
        weight_GC, num_noise_parameters = spread_weights(x_G, counts_G, group_N, deviation_NC), 2
    return Points(x_G, counts_G, group_N, mean_GC, deviation_NC, weight_GC, num_noise_parameters, seed_N)


def as_curve(name: str, values: npt.ArrayLike) -> Array:
    """Convert the values of one curve to float64 [N].

    Raises:
        FitError: There are several rows, or masked values.
    """
    check_dense(values, FitError)
    if np.ndim(values) != 1:
        raise FitError(
            f"{name} has shape {np.shape(values)}, expected one curve [N]. Fit several seeds, y [seeds, N], as one curve with "
            "x=np.tile(x, len(y)), y=y.ravel() and seeds=np.repeat(range(len(y)), len(x)), and a curve per row with fit_many."
        )
    return np.asarray(values, dtype=np.float64)


def check_positive(name: str, values: Array) -> None:
    """Check that all values have a logarithm.

    Raises:
        FitError: A value is not positive and finite.
    """
    bad = values[~(np.isfinite(values) & (values > 0))]
    if len(bad):
        raise FitError(
            f"{name} has {len(bad)} of {values.size} values that cannot be fitted. The first is {bad[0]}, expected a finite "
            "number > 0, because fits are in log space. Omit these points and report it."
        )


def _check(x_N: Array, y_CN: Array, weights: str) -> None:
    if weights not in WEIGHTINGS:
        raise FitError(f"weights is {weights!r}, expected one of {', '.join(WEIGHTINGS)}.")
    if x_N.ndim != 1 or y_CN.ndim != 2 or y_CN.shape[1] != len(x_N):
        raise FitError(f"x has shape {x_N.shape} and y has shape {y_CN.shape[-1:]}, expected two lists of one length.")
    if not len(y_CN):
        raise FitError("y has no curve, expected at least one.")
    check_positive("x", x_N)
    check_positive("y", y_CN)
    num_distinct = len(np.unique(x_N))
    if num_distinct < 2:
        raise FitError(
            f"x has {num_distinct} distinct values at {len(x_N)} points, expected at least 2 distinct values."
        )


def spread_weights(x_G: Array, count_G: Array, group_N: np.ndarray, deviation_NC: Array) -> Array:
    """Return weights [G, C] for a variance s^2 x^d, fitted by gamma likelihood to the group variances.

    A separate variance per depth would often be estimated from three seeds. Its reciprocal is worse than equal weights.
    """
    weight_GC = np.ones((len(x_G), deviation_NC.shape[1]))
    used_G = count_G > 1
    if used_G.sum() < 2:
        return weight_GC
    variance_GC = group_sums(deviation_NC**2, group_N)[used_G] / (count_G[used_G] - 1)[:, None]
    trust_G = (count_G[used_G] - 1) / (count_G[used_G] - 1).sum()
    u_G = np.log(x_G) - trust_G @ np.log(x_G[used_G])
    v_G = u_G[used_G]
    pooled_C = trust_G @ variance_GC
    noisy_C = pooled_C > EXACT_FIT_RMS**2  # the rest is rounding, which must not decide weights
    steepest = min(STEEPEST_SPREAD, np.log(MAX_WEIGHT_RATIO) / np.log(x_G.max() / x_G.min()))
    relative_GC = variance_GC[:, noisy_C] / pooled_C[noisy_C]
    level_C, slope_C = np.zeros(relative_GC.shape[1]), np.zeros(relative_GC.shape[1])
    for _ in range(50):  # Fisher scoring: a gamma variable with log link has constant weights
        excess_GC = relative_GC * np.exp(-(level_C + slope_C * v_G[:, None])) - 1
        step_C = (trust_G * v_G) @ excess_GC / (trust_G @ v_G**2)
        slope_C = np.clip(slope_C + np.clip(step_C, -1, 1), -steepest, steepest)
        level_C += np.clip(trust_G @ excess_GC, -1, 1)
        if np.abs(step_C).max(initial=0.0) < 1e-10:
            break
    weight_GC[:, noisy_C] = np.exp(-slope_C * u_G[:, None])
    return np.asarray(weight_GC * (count_G.sum() / (count_G @ weight_GC)))


def group_sums(value_NC: Array, group_N: np.ndarray) -> Array:
    """Sum the values of each group, [G, C]."""
    return np.asarray(np.equal.outer(np.arange(group_N[-1] + 1), group_N).astype(np.float64) @ value_NC)


def clip_outliers(log_y_NC: Array, group_N: np.ndarray) -> Array:
    """Return log y with values far from their group median pulled in (Huber's pseudo-values)."""
    groups = [np.flatnonzero(group_N == g) for g in range(group_N[-1] + 1)]
    median_NC = np.stack([np.median(log_y_NC[members], axis=0) for members in groups])[group_N]
    distance_NC = np.abs(log_y_NC - median_NC)
    # Omit the median of a group of odd size: its distance of zero carries no information about the spread.
    used_NC = np.concatenate([-np.sort(-distance_NC[g], axis=0)[: len(g) - len(g) % 2] for g in groups])
    if not len(used_NC):
        return log_y_NC
    reach_C = CLIP_AT * 1.4826 * np.median(used_NC, axis=0)
    return np.asarray(np.clip(log_y_NC, median_NC - reach_C, median_NC + reach_C))
