"""Weights of a curve's values: equal, by a spread that changes with x, or with outliers pulled in.

Shapes: C curves, N points, G groups (distinct x). Curves come last.
Source: Carroll and Ruppert, Transformation and Weighting (1988), 3.2.
"""

from __future__ import annotations

import numpy as np

from depthrate.tasks.fits.least_squares import Array

WEIGHTINGS = ("equal", "spread", "robust")
CLIP_AT = 2.5
"""Maximum distance from the group median for `robust`, in standard deviations (estimated from the median distance)."""
STEEPEST_SPREAD = 8.0
"""Maximum power of x in the variance: x^8 is a factor of 256 from one depth to twice that depth."""


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
    noisy_C = pooled_C > 0
    relative_GC = variance_GC[:, noisy_C] / pooled_C[noisy_C]
    level_C, slope_C = np.zeros(relative_GC.shape[1]), np.zeros(relative_GC.shape[1])
    for _ in range(50):  # Fisher scoring: a gamma variable with log link has constant weights
        excess_GC = relative_GC * np.exp(-(level_C + slope_C * v_G[:, None])) - 1
        step_C = (trust_G * v_G) @ excess_GC / (trust_G @ v_G**2)
        slope_C = np.clip(slope_C + np.clip(step_C, -1, 1), -STEEPEST_SPREAD, STEEPEST_SPREAD)
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
    median_NC = np.stack([np.median(log_y_NC[own], axis=0) for own in groups])[group_N]
    distance_NC = np.abs(log_y_NC - median_NC)
    # Omit the median of a group of odd size: its distance of zero carries no information about the spread.
    telling = [-np.sort(-distance_NC[own], axis=0)[: len(own) - len(own) % 2] for own in groups]
    telling_NC = np.concatenate(telling)
    if not len(telling_NC):
        return log_y_NC
    reach_C = CLIP_AT * 1.4826 * np.median(telling_NC, axis=0)
    return np.asarray(np.clip(log_y_NC, median_NC - reach_C, median_NC + reach_C))
