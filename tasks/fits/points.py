"""Values of many curves, checked and gathered by x: the input of every fit.

Shapes: C curves on one design (the same x, the same seeds), N points, G groups (the distinct x, rising), S seeds. Curves
come last.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from depthrate.errors import InputError
from depthrate.tasks.data.labels import check_dense, is_missing
from depthrate.tasks.fits.least_squares import Array

EXACT_FIT_RMS = 1e-12
"""Maximum RMS residual in log space that counts as rounding: curves that fit the points this well are equal."""


class FitError(InputError):
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
    seed_N: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
    """Seed number of each point, from 0. None for independent values."""

    @property
    def num_seeds(self) -> int:
        """Number of seeds S, 0 for independent values."""
        return 0 if self.seed_N is None else int(self.seed_N.max()) + 1

    def select(self, curves: slice) -> Points:
        return replace(self, mean_GC=self.mean_GC[:, curves], deviation_NC=self.deviation_NC[:, curves])

    @property
    def mass_GC(self) -> Array:
        """Weight of a group mean: its number of values."""
        return np.broadcast_to(self.count_G[:, None], self.mean_GC.shape)

    @property
    def within_C(self) -> Array:
        """Squares around the group means, independent of the fitted curve."""
        return np.asarray((self.deviation_NC**2).sum(0))

    @property
    def num_points(self) -> int:
        return len(self.group_N)


def gather(x_N: Array, y_CN: Array, seeds: Sequence[Hashable] | None = None) -> Points:
    """Gather curves by x.

    Values that share a seed and an x, such as restarts, are one observation: their geometric mean. The noise between
    seeds is estimated from observations, and repeats within a seed do not count as data.

    Args:
        x_N: Positive x values, shape [N].
        y_CN: Positive y values, shape [C, N].
        seeds: Seed of each value, length N. None for independent values.

    Raises:
        FitError: See `fit_many`.
    """
    _check(x_N, y_CN)
    log_y_NC, seed_N = np.log(y_CN.T), None
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
        x_N, seed_N, log_y_NC = _one_per_seed_and_x(x_N, seed_N, log_y_NC)
    order_N = np.argsort(x_N, kind="stable") if seed_N is None else np.lexsort((seed_N, x_N))
    x_G, group_N, count_G = np.unique(x_N[order_N], return_inverse=True, return_counts=True)
    groups = [np.flatnonzero(group_N == g) for g in range(len(x_G))]
    log_y_NC = log_y_NC[order_N]
    if seed_N is None:  # makes sums and resamples independent of the order of the points
        log_y_NC = np.concatenate([np.sort(log_y_NC[members], axis=0) for members in groups])
    else:
        seed_N = seed_N[order_N]
    mean_GC = np.stack([log_y_NC[members].mean(0) for members in groups])
    deviation_NC = log_y_NC - mean_GC[group_N]
    return Points(x_G, count_G.astype(np.float64), group_N, mean_GC, deviation_NC, seed_N)


def places_of(units: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Return the places of each unit's values, in order of first occurrence."""
    places: dict[Hashable, list[int]] = {}
    for place, unit in enumerate(units):
        places.setdefault(unit, []).append(place)
    return places


def _one_per_seed_and_x(x_N: Array, seed_N: np.ndarray, log_y_NC: Array) -> tuple[Array, np.ndarray, Array]:
    pair_N2 = np.stack([x_N, seed_N.astype(np.float64)], axis=1)
    pair_M2, index_N, count_M = np.unique(pair_N2, axis=0, return_inverse=True, return_counts=True)
    if len(count_M) == len(x_N):
        return x_N, seed_N, log_y_NC
    sum_MC = np.zeros((len(count_M), log_y_NC.shape[1]))
    np.add.at(sum_MC, index_N, log_y_NC)
    return pair_M2[:, 0], pair_M2[:, 1].astype(np.int64), sum_MC / count_M[:, None]


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


def _check(x_N: Array, y_CN: Array) -> None:
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


def group_sums(value_NC: Array, group_N: np.ndarray) -> Array:
    """Sum the values of each group, [G, C]."""
    return np.asarray(np.equal.outer(np.arange(group_N[-1] + 1), group_N).astype(np.float64) @ value_NC)
