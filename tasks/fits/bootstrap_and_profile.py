"""Uncertainty of parameters: bootstrap over values (BCa) and over whole units, profile likelihood, and the corresponding tests.

Shapes: C curves, N points, G groups (distinct x), B resamples, P shape parameters, R rows. Curves and rows come last,
except in arrays sorted by resample.
Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 12 to 14 (BCa: 14.3; several samples:
8.3); Hesterberg (2015), What Teachers Should Know About the Bootstrap, 5.3 (intervals too narrow, Student's quantile);
Bates and Watts, Nonlinear Regression Analysis (1988), 6.1 (profiles); Besiroglu et al. (2024), Chinchilla Scaling: A
replication attempt (bootstrap over whole units); Holm (1979), A simple sequentially rejective multiple test procedure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from depthrate.tasks.fits.least_squares import Array, linear_solution, residuals
from depthrate.tasks.fits.levenberg_marquardt import TOLERANCE, losses_left, minimise
from depthrate.tasks.fits.model import CurveFamily, exp, log_x_at
from depthrate.tasks.fits.points import Points, group_sums
from depthrate.tasks.fits.threads import BLOCK_ROWS, in_threads, parts_of

COVERAGE = 0.95
ENDS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
"""Quantiles of resamples of whole units at which intervals end."""
NORMAL_QUANTILE = float(special.ndtri((1 + COVERAGE) / 2))
EQUAL_ESTIMATE_SHARE = 1e-6
"""Maximum distance, relative to the interquartile range, at which a resampled estimate counts as equal to the estimate."""
CLOSE = 1e-5
"""Tolerance of a profile's curve, relative to the residuals. The squares are then accurate to its square."""
TOLERANCE_RESAMPLED = 5e-4
"""Tolerance for resamples, relative to their spread: twenty times finer than the resolution of 1000 resamples."""
TOLERANCE_OF_UNITS = 1e-6
"""Tolerance for resamples of whole units, relative to the residuals."""
BLOCK_VALUES = 1 << 22
"""Maximum number of values times rows in one block of resamples, for memory."""
STEPS_FROM_FIT = 100
"""Maximum number of steps from a fit to that of a resample, or with a fixed parameter."""
NUM_FOR_SPREAD = 100
"""Number of resamples from which the spread is estimated."""
CLOSE_OF_CURVE = 1e-6
CLOSE_OF_SUM = 1e-3
"""Tolerance of the height at which an interval by profile ends, as a share of half its length. A sum has several parameters,
each with its own search."""
MAX_BRACKETS = 30
MAX_SECANTS = 40


@dataclass(frozen=True)
class Resampling:
    """Resamples shared by all curves and models of a design, so that intervals differ only by data and model."""

    pools: list[np.ndarray[tuple[int], np.dtype[np.int64]]]
    """Points from which each group is resampled: its own or, if it has one value, those of all repeated groups."""
    shares: list[Array]
    """Weight of each point in the resampled means, [pool, B] per group, times the stretch for small samples."""

    def means(self, points: Points) -> Array:
        """Compute the resampled group means, [G, C, B]."""
        moved = [points.deviation_NC[pool].T @ share for pool, share in zip(self.pools, self.shares, strict=True)]
        return np.asarray(np.stack(moved) + points.mean_GC[..., None])


def draw(points: Points, num_resamples: int, seed: int) -> Resampling | None:
    """Resample each group's values with replacement. Return None if no group has two values."""
    rng = np.random.default_rng(seed)
    groups = [np.flatnonzero(points.group_N == g) for g in range(len(points.x_G))]
    # m values resampled from m have (m-1)/m of the unbiased variance: with three seeds, the plain bootstrap would shrink
    # the interval by a fifth. Deviations stretched by sqrt(m/(m-1)) give the group mean its unbiased variance s^2/m.
    stretch_N = np.concatenate([np.full(len(group), np.sqrt(len(group) / max(len(group) - 1, 1))) for group in groups])
    # A single value has an unknown spread, not a zero one, so its group borrows the spread of the others.
    repeated = np.concatenate([group for group in groups if len(group) > 1] or [np.zeros(0, dtype=np.int64)])
    if not len(repeated):
        return None
    pools = [group if len(group) > 1 else repeated for group in groups]
    shares = []
    for group, pool in zip(groups, pools, strict=True):
        chosen_BM = rng.integers(len(pool), size=(num_resamples, len(group)))
        counts_BP = (chosen_BM[..., None] == np.arange(len(pool))).sum(1)
        shares.append(np.ascontiguousarray(counts_BP.T / len(group) * stretch_N[pool][:, None]))
    return Resampling(pools, shares)


def t_quantile(degrees_of_freedom: float) -> float:
    """Return the t with P(|T| < t) = 95 % for Student's T."""
    return float(t_quantiles(np.array(degrees_of_freedom, dtype=np.float64)))


def t_quantiles(degrees_of_freedom: Array) -> Array:
    """Return `t_quantile` elementwise."""
    return np.asarray(special.stdtrit(degrees_of_freedom, (1 + COVERAGE) / 2))


def f_tail(f: Array | float, q: Array | float, degrees_of_freedom: Array | float) -> Array:
    """Return P(F > f) for Fisher's F with q and `degrees_of_freedom` degrees of freedom."""
    return np.asarray(special.fdtrc(q, degrees_of_freedom, np.maximum(f, 0.0)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for the number of tests, by Holm's procedure."""
    order, corrected, largest = np.argsort(p_values), [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected


def acceleration(influence_GC: Array, points: Points) -> Array:
    """Compute BCa's acceleration [C] from each point's influence on the estimate (infinitesimal jackknife)."""
    influence_NC = (influence_GC / points.count_G[:, None])[points.group_N] * points.deviation_NC
    squares_C = (influence_NC**2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value_C = (influence_NC**3).sum(0) / (6 * squares_C**1.5)
    return np.nan_to_num(value_C, nan=0.0, posinf=0.0, neginf=0.0)


def effective_freedom(influence_GC: Array, points: Points) -> Array:
    """Compute Satterthwaite's degrees of freedom [C] of the estimate's variance, a sum of contributions per group.

    If one depth contributes most of the variance, few values determine it. Source: Satterthwaite (1946).
    """
    free_G1 = np.maximum(points.count_G - 1, 0.0)[:, None]
    free, lone_G1 = free_G1.sum(), free_G1 == 0
    squares_GC = group_sums(points.deviation_NC**2, points.group_N)
    variance_GC = np.where(lone_G1, squares_GC.sum(0) / free, squares_GC / np.where(lone_G1, 1.0, free_G1))
    added_GC = influence_GC**2 * variance_GC / points.count_G[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom_C = added_GC.sum(0) ** 2 / (added_GC**2 / np.where(lone_G1, free, free_G1)).sum(0)
    return np.clip(np.nan_to_num(freedom_C, nan=free), 1.0, free)


def bca_interval(
    estimate_C: Array, resampled_CB: Array, acceleration_C: Array, freedom_C: Array
) -> tuple[Array, Array]:
    """Return the 95 % interval [C], [C] from resampled estimates, corrected for bias and skewness, and stretched.

    A spread estimated from few seeds is itself uncertain, so each end's distance from the estimate is scaled by Student's
    quantile over the normal one. (A more extreme tail would not suffice: resampled means of three values reach at most
    two standard errors, and Student's quantile at two degrees of freedom is 4.3.)
    """
    num_resamples = resampled_CB.shape[1]
    ordered_CB = np.sort(resampled_CB, axis=1)
    # Resamples equal to the sample count half. The margin absorbs rounding and the minimiser's tolerance.
    with np.errstate(invalid="ignore"):
        reach_C = EQUAL_ESTIMATE_SHARE * (ordered_CB[:, 3 * num_resamples // 4] - ordered_CB[:, num_resamples // 4])
    reach_C1 = np.where(np.isfinite(reach_C), reach_C, 0.0)[:, None]
    below_CB, upto_CB = resampled_CB < estimate_C[:, None] - reach_C1, resampled_CB <= estimate_C[:, None] + reach_C1
    below_C = (below_CB.sum(1) + upto_CB.sum(1)) / 2
    bias_C = special.ndtri(np.clip(below_C, 0.5, num_resamples - 0.5) / num_resamples)
    ends = []
    for sign in (-1, 1):
        moved_C = bias_C + sign * NORMAL_QUANTILE
        tail_C = special.ndtr(bias_C + moved_C / np.maximum(1 - acceleration_C * moved_C, 0.1))
        end_C = _quantile(ordered_CB, tail_C)
        with np.errstate(invalid="ignore"):  # inf: the curve never meets its target
            wider_C = estimate_C + (end_C - estimate_C) * t_quantiles(freedom_C) / NORMAL_QUANTILE
        ends.append(np.where(np.isfinite(estimate_C) & np.isfinite(end_C), wider_C, end_C))
    return ends[0], ends[1]


def _quantile(ordered_CB: Array, share_C: Array) -> Array:
    place_C = share_C * (ordered_CB.shape[1] - 1)
    low_C = np.floor(place_C).astype(np.int64)
    high_C = np.minimum(low_C + 1, ordered_CB.shape[1] - 1)
    rows, part_C = np.arange(len(ordered_CB)), place_C - low_C
    lower_C, upper_C = ordered_CB[rows, low_C], ordered_CB[rows, high_C]
    with np.errstate(invalid="ignore"):  # inf: the curve never meets its target
        between_C = lower_C * (1 - part_C) + upper_C * part_C
    return np.where((part_C == 0) | (lower_C == upper_C), lower_C, between_C)


def resampled(
    family: CurveFamily,
    points: Points,
    resampling: Resampling,
    theta_PC: Array,
    level_C: Array,
    influences: Mapping[int, Array],
    target: float | None,
) -> tuple[Array, Array, dict[str, Array]]:
    """Compute the bootstrap intervals [P, C], [P, C] of some parameters, and those of the x at a target by column name.

    `influences`: number of a parameter -> influence of each group mean on it.
    """
    num_resamples = resampling.shares[0].shape[1]
    corrections = {
        p: (acceleration(own_GC, points), effective_freedom(own_GC, points)) for p, own_GC in influences.items()
    }
    low_PC, high_PC = np.full((2, *theta_PC.shape), np.nan)
    columns = {name: np.empty(len(level_C)) for name in (["x_at_low", "x_at_high"] if target is not None else [])}

    def work(part: slice) -> None:
        family_here, points_here, estimate_PC = family.select(part), points.select(part), theta_PC[:, part]
        mean_GCB = resampling.means(points_here)
        theta_PCB = refit(family_here, points_here, estimate_PC, mean_GCB)
        for p, (acceleration_C, freedom_C) in corrections.items():
            ends = bca_interval(estimate_PC[p], theta_PCB[p], acceleration_C[part], freedom_C[part])
            for end_PC, end_C in zip((low_PC, high_PC), ends, strict=True):  # the model has no curve outside the box
                end_PC[p, part] = np.clip(end_C, family_here.lower_PC[p], family_here.upper_PC[p])
        if target is not None:
            log_c_C = family_here.log_coefficients(estimate_PC, level_C[part], family_here.ref_C)[0]
            log_x_C = log_x_at(family_here, estimate_PC, log_c_C, family_here.ref_C, target)
            log_x_CB = _resampled_x_at(family_here, points_here, theta_PCB, mean_GCB, target)
            low_C, high_C = bca_interval(log_x_C, log_x_CB, np.zeros_like(log_x_C), corrections[0][1][part])
            columns["x_at_low"][part], columns["x_at_high"][part] = exp(low_C), exp(high_C)

    in_threads(work, parts_of(len(level_C), at_most=BLOCK_ROWS // num_resamples))
    return low_PC, high_PC, columns


def refit(family: CurveFamily, points: Points, theta_PC: Array, mean_GCB: Array) -> Array:
    """Fit the shape parameters [P, C, B] to resampled means."""
    if family.basis_GP is not None:
        return linear_solution(family.basis_GP, mean_GCB - family.offset_G11, points.mass_GC)
    spread_C = (mean_GCB[..., :NUM_FOR_SPREAD] - points.mean_GC[..., None]).std((0, 2))
    tolerance_C = np.maximum(TOLERANCE, TOLERANCE_RESAMPLED * spread_C)
    return minimise(family, theta_PC, mean_GCB, points.mass_GC, tolerance_C, max_steps=STEPS_FROM_FIT)


def resample_units(points: Points, num_resamples: int, seed: int) -> Array:
    """Return the weight of each value [N, B] in resamples of whole units. Independent values are units of their own."""
    unit_N = np.arange(points.num_points) if points.seed_N is None else points.seed_N
    num_units = int(unit_N.max()) + 1
    drawn_BU = np.random.default_rng(seed).multinomial(num_units, np.full(num_units, 1 / num_units), num_resamples)
    return drawn_BU[:, unit_N].T.astype(np.float64)


def refit_weighted(
    family: CurveFamily, points: Points, theta_PC: Array, weight_NB: Array, threshold: float | None
) -> tuple[Array, Array]:
    """Fit the shape parameters [P, C, B] and the level [C, B] to weighted values, each row from the estimate."""
    first_G = np.flatnonzero(np.diff(points.group_N, prepend=-1))
    num_curves, num_rows = theta_PC.shape[1], weight_NB.shape[1]
    theta_PCB, level_CB = np.empty((*theta_PC.shape, num_rows)), np.empty((num_curves, num_rows))
    size = max(1, BLOCK_VALUES // (points.num_points * num_curves))
    for start in range(0, num_rows, size):
        weight_NR = weight_NB[:, start : start + size]
        mass_GR = np.add.reduceat(weight_NR, first_G, axis=0)
        moved_GCR = np.stack(
            [np.add.reduceat(weight_NR * own_N[:, None], first_G, axis=0) for own_N in points.deviation_NC.T], axis=1
        )
        mean_GCR = points.mean_GC[..., None] + moved_GCR / np.where(mass_GR > 0, mass_GR, 1.0)[:, None]
        curve_R = np.repeat(np.arange(num_curves), weight_NR.shape[1])
        mean_GR, mass_GR = mean_GCR.reshape(len(first_G), -1), np.tile(mass_GR, num_curves)
        rows = family.select(curve_R)
        if family.basis_GP is not None and threshold is None:
            theta_PR = linear_solution(family.basis_GP, mean_GR[..., None] - family.offset_G11, mass_GR)[..., 0]
        else:
            tolerance_C = np.maximum(TOLERANCE, TOLERANCE_OF_UNITS * points.deviation_NC.std(0))
            theta_PR = minimise(
                rows, theta_PC[:, curve_R], mean_GR[..., None], mass_GR, tolerance_C[curve_R], threshold, STEPS_FROM_FIT
            )[..., 0]
        share_GR = mass_GR / mass_GR.sum(0)
        level_R, _, _ = residuals(rows.shape, theta_PR, rows.ref_C, mean_GR, share_GR, has_level=rows.has_level)
        block = slice(start, start + size)
        theta_PCB[..., block] = theta_PR.reshape(*theta_PCB.shape[:2], weight_NR.shape[1])
        level_CB[:, block] = level_R.reshape(num_curves, -1)
    return theta_PCB, level_CB


def _resampled_x_at(family: CurveFamily, points: Points, theta_PCB: Array, mean_GCB: Array, target: float) -> Array:
    num_groups, num_curves, num_resamples = mean_GCB.shape
    curve_R = np.repeat(np.arange(num_curves), num_resamples)
    theta_PR, mass_GR = theta_PCB.reshape(-1, len(curve_R)), points.mass_GC[:, curve_R]
    mean_GR, ref_R, share_GR = mean_GCB.reshape(num_groups, -1), family.ref_C[curve_R], mass_GR / mass_GR.sum(0)
    level_R, _, _ = residuals(family.shape, theta_PR, ref_R, mean_GR, share_GR, has_level=family.has_level)
    log_c_R = family.log_coefficients(theta_PR, level_R, ref_R)[0]
    return log_x_at(family, theta_PR, log_c_R, ref_R, target).reshape(num_curves, num_resamples)


@dataclass(frozen=True)
class ProfileLikelihood:
    """Profile of a fitted model: the minimum squares at a fixed value of one parameter."""

    family: CurveFamily
    points: Points
    theta_PC: Array
    squares_C: Array
    """Squares at the best exponent, including those within groups."""
    parameter: int = 0
    """Number of the parameter."""

    def squares_at(self, a_R: Array, curve_R: np.ndarray) -> Array:
        """Return the squares [R] of each row's curve with the parameter fixed at a."""
        rows, theta_PR = self.family.select(curve_R), self.theta_PC[:, curve_R]
        held_R = np.clip(a_R, rows.lower_PC[self.parameter], rows.upper_PC[self.parameter])
        rows.lower_PC[self.parameter] = rows.upper_PC[self.parameter] = theta_PR[self.parameter] = held_R
        mean_GR, mass_GR = self.points.mean_GC[:, curve_R], self.points.mass_GC[:, curve_R]
        num_rows, last = len(held_R), len(theta_PR) - 1 - self.family.is_level_last
        if len(theta_PR) > 1:
            # Start from the fit and from no floor, since the squares can have a second minimum.
            no_floor_PR = theta_PR.copy()
            no_floor_PR[last] = np.where(np.isfinite(rows.lower_PC[last]), rows.lower_PC[last], theta_PR[last])
            tolerance_R = np.maximum(1e-9, CLOSE * np.sqrt(self.squares_C[curve_R] / self.points.num_points))
            rows, theta_PR = rows.select(np.tile(np.arange(num_rows), 2)), np.hstack([theta_PR, no_floor_PR])
            mean_GR, mass_GR, tolerance_R = np.tile(mean_GR, 2), np.tile(mass_GR, 2), np.tile(tolerance_R, 2)
            theta_PR = minimise(rows, theta_PR, mean_GR[..., None], mass_GR, tolerance_R, max_steps=STEPS_FROM_FIT)[
                ..., 0
            ]
        best_R = losses_left(rows, theta_PR, mean_GR, mass_GR).reshape(-1, num_rows).min(0)
        outside_R = held_R != a_R  # the model has no curve there
        return np.where(outside_R, np.inf, best_R + self.points.within_C[curve_R])

    def interval(self, stderr_C: Array, added_C: Array) -> tuple[Array, Array]:
        """Find the values [C], [C] of the parameter at which the squares are `added_C` above the minimum.

        NaN if they never are.

        `stderr_C`: standard error of the parameter, the initial scale of the search.
        """
        num_curves = len(self.squares_C)
        curve_R, sign_R = np.tile(np.arange(num_curves), 2), np.repeat([-1.0, 1.0], num_curves)
        centre_R = self.theta_PC[self.parameter, curve_R]
        bound_R = np.where(
            sign_R < 0, self.family.lower_PC[self.parameter, curve_R], self.family.upper_PC[self.parameter, curve_R]
        )
        # The square root of added / added_C, minus 1, is nearly linear in a: -1 at the best exponent, 0 at the limit.
        least_R = self.squares_C[curve_R]
        unit_R = np.maximum(np.nan_to_num(added_C, nan=np.inf), 1e-24)[curve_R]

        def height(a_R: Array, rows: np.ndarray) -> Array:
            added_R = np.maximum(self.squares_at(a_R, curve_R[rows]) - least_R[rows], 0.0)
            return np.asarray(np.sqrt(np.minimum(added_R / unit_R[rows], 1e12)) - 1)

        inside_R, low_R = centre_R.copy(), np.full_like(centre_R, -1.0)
        outside_R, high_R = np.full_like(centre_R, np.nan), np.full_like(centre_R, np.nan)
        guess_R = np.nan_to_num(2 * stderr_C, nan=0.0)[curve_R]
        reach_R = np.where(guess_R > 0, 1.1 * guess_R, 0.05 * np.maximum(np.abs(centre_R), 0.1))
        rows = np.arange(len(centre_R))
        for _ in range(MAX_BRACKETS):
            if not len(rows):
                break
            reached = centre_R[rows] + sign_R[rows] * reach_R[rows]
            tried = np.where(sign_R[rows] < 0, np.maximum(reached, bound_R[rows]), np.minimum(reached, bound_R[rows]))
            value = height(tried, rows)
            over = value > 0
            outside_R[rows[over]], high_R[rows[over]] = tried[over], value[over]
            inside_R[rows[~over]], low_R[rows[~over]] = tried[~over], value[~over]
            reach_R[rows] *= 2
            rows = rows[~over & (tried != bound_R[rows])]
        tolerance = CLOSE_OF_SUM if self.family.is_sum and len(self.points.x_KG) > 1 else CLOSE_OF_CURVE
        self._close_in(height, inside_R, low_R, outside_R, high_R, tolerance)
        ends_R = np.where(np.isfinite(outside_R), inside_R, np.nan)
        return ends_R[:num_curves], ends_R[num_curves:]

    @staticmethod
    def _close_in(
        height: Callable[[Array, np.ndarray], Array],
        inside_R: Array,
        low_R: Array,
        outside_R: Array,
        high_R: Array,
        tolerance: float,
    ) -> None:
        """Find the root between inside (low < 0) and outside (high > 0), in place: regula falsi, Illinois' variant."""
        rows = np.flatnonzero(np.isfinite(outside_R))
        for _ in range(MAX_SECANTS):
            if not len(rows):
                break
            share = np.clip(low_R[rows] / (low_R[rows] - high_R[rows]), 0.0, 1.0)
            middle = inside_R[rows] + share * (outside_R[rows] - inside_R[rows])
            value = height(middle, rows)
            over = value > 0
            # Halve the value at the end that stays, otherwise it would stay in every iteration.
            high_R[rows] = np.where(over, value, high_R[rows] / 2)
            low_R[rows] = np.where(over, low_R[rows] / 2, value)
            outside_R[rows[over]], inside_R[rows[~over]] = middle[over], middle[~over]
            inside_R[rows[np.abs(value) < tolerance]] = middle[np.abs(value) < tolerance]
            rows = rows[(np.abs(value) >= tolerance) & (np.abs(outside_R[rows] - inside_R[rows]) > 1e-12)]
