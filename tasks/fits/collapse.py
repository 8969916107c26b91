"""Finite-size collapse: exponents for which the curves y(l, L) = L^-a g((L - l) / L^b) of several depths L coincide.

For given b, each curve is interpolated (log y over the scaled distance from the last layer) at the points of the others
that lie within its range. The quality is the mean absolute deviation of log y there. For given b it is piecewise linear in
a, so that the best a is a weighted median, and the search is over b alone.

Source: Bhattacharjee and Seno (2001), A measure of data collapse for scaling, J. Phys. A 34, 6375, cond-mat/0102515: their
P_b with q = 1, of logarithms and with linear interpolation. Their interval from the curvature of P_b knows no noise. Here
it is Student's t over the exponents of whole units.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.bootstrap_and_profile import t_quantile
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.points import FitError, as_curve, check_positive, places_of
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS

B_RANGE = (-0.5, 2.0)
"""Range of the search over b: 0 counts layers from the last, 1 is the share of the depth."""
B_STEPS = (0.02, 1e-3, 5e-5)
"""Distances of b in the search. Each one after the first is for the neighbourhood of the best b so far."""
Curves = Mapping[float, tuple[Array, Array]]
"""Depth -> distances L - l from the last layer, rising, and means of log y there."""


@dataclass(frozen=True)
class Collapse:
    """The exponents with the best collapse."""

    a: float
    b: float
    quality: float
    """Mean absolute deviation of log y between a curve and the interpolation of another. 0: perfect."""
    unscaled: float
    """The quality of a = b = 0."""
    a_interval: tuple[float, float] | None
    b_interval: tuple[float, float] | None
    """95 % intervals over whole units. None with fewer than three units that have all depths."""
    num_units: int
    """Number of those units."""

    @property
    def is_at_edge(self) -> bool:
        """Whether b is at the edge of the search, so that no b collapses the curves."""
        return min(abs(self.b - end) for end in B_RANGE) < B_STEPS[0]


def fit_collapse(
    depth_N: npt.ArrayLike, layer_N: npt.ArrayLike, value_N: npt.ArrayLike, units: Sequence[Hashable] | None = None
) -> Collapse:
    """Find the exponents a and b for which the curves of several depths coincide.

    Args:
        depth_N: Depth L of each value, at least 1, shape [N].
        layer_N: Layer l of each value, at most L, shape [N].
        value_N: Positive values, shape [N]. Values of one depth and layer are averaged in log.
        units: Unit of resampling of each value, such as the seed. None for no interval.

    Returns:
        The exponents, their intervals and the quality.

    Raises:
        FitError: A value is not positive and finite, a layer is beyond its depth, lengths differ, fewer than two depths
            have two layers, or their curves do not overlap.
    """
    named = {"depth": depth_N, "layer": layer_N, "value": value_N}
    depth_N, layer_N, value_N = (as_curve(name, values) for name, values in named.items())
    if not len(depth_N) == len(layer_N) == len(value_N) == len(value_N if units is None else units):
        raise FitError("depth, layer, value and units have different lengths.")
    check_positive("depth", depth_N)
    check_positive("value", value_N)
    if not (layer_N <= depth_N).all():
        raise FitError(f"a layer is beyond its depth {depth_N[~(layer_N <= depth_N)][0]:g}.")
    curves = _curves(depth_N, layer_N, value_N)
    if len(curves) < 2:
        raise FitError(f"{len(curves)} depths with two layers, at least 2 needed")
    a, b, quality = _best(curves)
    own = []
    for members in places_of(() if units is None else units).values():
        of_unit = _curves(depth_N[members], layer_N[members], value_N[members])
        if of_unit.keys() == curves.keys():
            own.append(_best(of_unit)[:2])
    a_interval = b_interval = None
    if len(own) >= MIN_SEEDS:
        half_2 = t_quantile(len(own) - 1) * np.std(own, axis=0, ddof=1) / len(own) ** 0.5
        a_interval, b_interval = (
            (value - half, value + half) for value, half in zip((a, b), half_2.tolist(), strict=True)
        )
    deviation_M = _deviations(curves, 0.0)[1]
    unscaled = float(np.abs(deviation_M).sum() / max(len(deviation_M), 1))
    return Collapse(a, b, quality, unscaled, a_interval, b_interval, len(own))


def _curves(depth_N: Array, layer_N: Array, value_N: Array) -> Curves:
    curves = {}
    for depth in np.unique(depth_N):
        is_depth = depth_N == depth
        x_G, group_M = np.unique(depth - layer_N[is_depth], return_inverse=True)
        if len(x_G) > 1:
            curves[float(depth)] = x_G, np.bincount(group_M, np.log(value_N[is_depth])) / np.bincount(group_M)
    return curves


def _best(curves: Curves) -> tuple[float, float, float]:
    """Return a, b and the quality."""
    # two profiles that end at the last layer share three points or more
    enough = 3 * len(curves) * (len(curves) - 1) // 2
    low, high = B_RANGE
    for step in B_STEPS:
        tried = [(b, *_deviations(curves, b)) for b in np.linspace(low, high, round((high - low) / step) + 1)]
        found = [(*_best_a(*points), b) for b, *points in tried if len(points[0]) >= enough]
        if not found:
            raise FitError("the curves of different depths do not overlap.")
        quality, a, b = min(found)
        low, high = max(b - 2 * step, B_RANGE[0]), min(b + 2 * step, B_RANGE[1])
    return a, float(b), quality


def _deviations(curves: Curves, b: float) -> tuple[Array, Array]:
    """Return, per point of a curve within the range of another one, the difference of their log L and that of their log y."""
    points = [(np.full(len(x), depth), x / depth**b, log_y) for depth, (x, log_y) in curves.items()]
    depth_N, x_N, log_y_N = map(np.concatenate, zip(*points, strict=True))
    differences, deviations = [], []
    for depth_G, x_G, log_y_G in points:
        is_other = (depth_N != depth_G[0]) & (x_N >= x_G[0]) & (x_N <= x_G[-1])
        deviations.append(log_y_N[is_other] - np.interp(x_N[is_other], x_G, log_y_G))
        differences.append(np.log(depth_N[is_other] / depth_G[0]))
    return np.concatenate(differences), np.concatenate(deviations)


def _best_a(difference_M: Array, deviation_M: Array) -> tuple[float, float]:
    """Return the least mean of |deviation + a difference|, and its a: a weighted median."""
    root_M, weight_M = -deviation_M / difference_M, np.abs(difference_M)
    order = np.argsort(root_M)
    total = np.cumsum(weight_M[order])
    a = float(root_M[order][np.searchsorted(total, total[-1] / 2)])
    return float(np.abs(deviation_M + a * difference_M).mean()), a
