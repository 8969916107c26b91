"""Values of many curves, checked and gathered by x: the input of every fit.

Shapes: C curves on one design (the same x, the same seeds), N points, G groups (the distinct x, rising), S seeds. Curves
come last.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.weights import WEIGHTINGS, clip_outliers, spread_weights

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
    seed_N = None if seeds is None else _numbered(seeds, len(x_N))
    order_N = np.argsort(x_N, kind="stable") if seed_N is None else np.lexsort((seed_N, x_N))
    x_G, group_N, count_G = np.unique(x_N[order_N], return_inverse=True, return_counts=True)
    members = [np.flatnonzero(group_N == g) for g in range(len(x_G))]
    log_y_NC = np.log(y_CN.T[order_N])
    if seed_N is None:  # makes sums and resamples independent of the order of the points
        log_y_NC = np.concatenate([np.sort(log_y_NC[own], axis=0) for own in members])
    else:
        seed_N = seed_N[order_N]
    if weights == "robust":
        log_y_NC = clip_outliers(log_y_NC, group_N)
    mean_GC = np.stack([log_y_NC[own].mean(0) for own in members])
    deviation_NC = log_y_NC - mean_GC[group_N]
    counts_G = count_G.astype(np.float64)
    if weights != "spread":
        return Points(x_G, counts_G, group_N, mean_GC, deviation_NC, np.ones_like(mean_GC), 1, seed_N)
    weight_GC = spread_weights(x_G, counts_G, group_N, deviation_NC)
    return Points(x_G, counts_G, group_N, mean_GC, deviation_NC, weight_GC, 2, seed_N)


def _numbered(seeds: Sequence[Hashable], num_points: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if len(seeds) != num_points:
        raise FitError(f"there are {num_points} values and {len(seeds)} seeds; give the seed of each value, or none")
    numbers = {seed: number for number, seed in enumerate(dict.fromkeys(seeds))}
    return np.array([numbers[seed] for seed in seeds], dtype=np.int64)


def check_positive(name: str, values: Array) -> None:
    """Check that all values have a logarithm.

    Raises:
        FitError: A value is not positive and finite.
    """
    bad = values[~(np.isfinite(values) & (values > 0))]
    if len(bad):
        raise FitError(
            f"{name} has {len(bad)} values out of {values.size} that can't be fitted, the first is {bad[0]}; all "
            "must be finite and above zero (the fit is in log space): leave such points out and say so"
        )


def _check(x_N: Array, y_CN: Array, weights: str) -> None:
    if weights not in WEIGHTINGS:
        raise FitError(f"unknown weights {weights!r}; known are {', '.join(WEIGHTINGS)}")
    if x_N.ndim != 1 or y_CN.ndim != 2 or y_CN.shape[1] != len(x_N):
        raise FitError(f"x has shape {x_N.shape}, y has shape {y_CN.shape[-1:]}; two lists of one length are needed")
    if not len(y_CN):
        raise FitError("there is no curve to fit; give y of at least one")
    check_positive("x", x_N)
    check_positive("y", y_CN)
    num_distinct = len(np.unique(x_N))
    if num_distinct < 2:
        raise FitError(f"{len(x_N)} points with {num_distinct} distinct x; at least 2 distinct x are needed for a rate")
