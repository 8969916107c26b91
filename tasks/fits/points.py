"""Values of many curves or surfaces, checked and gathered by x: the input of every fit.

Shapes: K variables, C curves on one design (the same x, the same seeds), N points, G groups (the distinct x, rising), S seeds.
Curves come last. A seed stands for any unit of resampling, and a curve for a surface where K > 1.
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

    x_KG: Array
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
    def x_G(self) -> Array:
        """The only variable, or the first of several."""
        return np.asarray(self.x_KG[0])

    @property
    def num_seeds(self) -> int:
        """Number of seeds S, 0 for independent values."""
        return 0 if self.seed_N is None else int(self.seed_N.max()) + 1

    def single(self) -> Points:
        """Return each value as a group of its own, as losses that do not add up over a group need it."""
        number_N = np.arange(self.num_points)
        value_NC = self.mean_GC[self.group_N] + self.deviation_NC
        nothing_NC = np.zeros_like(value_NC)
        return Points(self.x_KG[:, self.group_N], np.ones(len(number_N)), number_N, value_NC, nothing_NC, self.seed_N)

    def on_y(self) -> Points:
        """Return the curves of y instead of log y."""
        y_NC = np.exp(self.mean_GC[self.group_N] + self.deviation_NC)
        mean_GC = group_sums(y_NC, self.group_N) / self.count_G[:, None]
        return replace(self, mean_GC=mean_GC, deviation_NC=y_NC - mean_GC[self.group_N])

    def select(self, curves: slice) -> Points:
        """Return some of the curves."""
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


def gather(
    x_KN: Array,
    y_CN: Array,
    seeds: Sequence[Hashable] | None = None,
    names: Sequence[str] = ("x",),
    units: str = "seeds",
) -> Points:
    """Gather curves by x.

    Values that share a seed and an x, such as restarts, are one observation: their geometric mean. The noise between
    seeds is estimated from observations, and repeats within a seed do not count as data.

    Args:
        x_KN: Positive values of the variables, shape [K, N], or [N] of one variable.
        y_CN: Positive y values, shape [C, N].
        seeds: Seed of each value, length N. None for independent values.
        names: Names of the variables, for messages.
        units: Name of `seeds`, for messages.

    Raises:
        FitError: See `fit_many`.
    """
    x_KN = np.atleast_2d(x_KN)
    _check(x_KN, y_CN, names)
    log_y_NC, seed_N = np.log(y_CN.T), None
    if seeds is not None:
        if len(seeds) != x_KN.shape[1]:
            raise FitError(f"{units} has {len(seeds)} entries, expected {x_KN.shape[1]}, one per value, or None.")
        numbers = {seed: number for number, seed in enumerate(dict.fromkeys(seeds))}
        if missing := [seed for seed in numbers if is_missing(seed)]:
            raise FitError(
                f"{units} has the entry {missing[0]!r}, expected int, str or other values that equal themselves. Remove points "
                "without a seed, and convert arrays with tolist()."
            )
        seed_N = np.array([numbers[seed] for seed in seeds], dtype=np.int64)
        x_KN, seed_N, log_y_NC = _one_per_seed_and_x(x_KN, seed_N, log_y_NC)
    x_KG, group_N, count_G = np.unique(x_KN, axis=1, return_inverse=True, return_counts=True)
    group_N = group_N.reshape(-1)
    order_N = np.argsort(group_N, kind="stable") if seed_N is None else np.lexsort((seed_N, group_N))
    group_N, log_y_NC = group_N[order_N], log_y_NC[order_N]
    first_G = np.flatnonzero(np.diff(group_N, prepend=-1))
    if seed_N is None:  # makes sums and resamples independent of the order of the points
        log_y_NC = np.concatenate([np.sort(part_MC, axis=0) for part_MC in np.split(log_y_NC, first_G[1:])])
    else:
        seed_N = seed_N[order_N]
    mean_GC = np.stack([part_MC.mean(0) for part_MC in np.split(log_y_NC, first_G[1:])])
    deviation_NC = log_y_NC - mean_GC[group_N]
    return Points(x_KG, count_G.astype(np.float64), group_N, mean_GC, deviation_NC, seed_N)


def places_of(units: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Return the places of each unit's values, in order of first occurrence."""
    places: dict[Hashable, list[int]] = {}
    for place, unit in enumerate(units):
        places.setdefault(unit, []).append(place)
    return places


def _one_per_seed_and_x(x_KN: Array, seed_N: np.ndarray, log_y_NC: Array) -> tuple[Array, np.ndarray, Array]:
    pair_NL = np.concatenate([x_KN, seed_N.astype(np.float64)[None]]).T
    pair_ML, index_N, count_M = np.unique(pair_NL, axis=0, return_inverse=True, return_counts=True)
    if len(count_M) == len(seed_N):
        return x_KN, seed_N, log_y_NC
    sum_MC = np.zeros((len(count_M), log_y_NC.shape[1]))
    np.add.at(sum_MC, index_N.reshape(-1), log_y_NC)
    return pair_ML[:, :-1].T, pair_ML[:, -1].astype(np.int64), sum_MC / count_M[:, None]


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


def _check(x_KN: Array, y_CN: Array, names: Sequence[str]) -> None:
    num_variables, num_points = x_KN.shape
    if num_variables != len(names):
        raise FitError(f"x has shape {x_KN.shape}, expected one row for each of {', '.join(names)}.")
    if y_CN.ndim != 2 or y_CN.shape[1] != num_points:
        shape = x_KN.shape if num_variables > 1 else (num_points,)
        raise FitError(f"x has shape {shape} and y has shape {y_CN.shape[-1:]}, expected two lists of one length.")
    if not len(y_CN):
        raise FitError("y has no curve, expected at least one.")
    for name, x_N in zip(names, x_KN, strict=True):
        check_positive(name, x_N)
    check_positive("y", y_CN)
    for name, x_N in zip(names, x_KN, strict=True):
        if (num_distinct := len(np.unique(x_N))) < 2:
            raise FitError(
                f"{name} has {num_distinct} distinct values at {num_points} points, expected at least 2 distinct values."
            )


def group_sums(value_NC: Array, group_N: np.ndarray) -> Array:
    """Sum the values of each group, [G, C]."""
    return np.asarray(np.equal.outer(np.arange(group_N[-1] + 1), group_N).astype(np.float64) @ value_NC)
