"""Weighted least squares of many small curves at once: level + shape(theta) on group means, with bounds (the box).

Shapes: C curves, B rows of a curve (resamples), R rows fitted at once, G groups (the distinct x, rising), P shape
parameters (one or two), Q = 1 + P, T = 1 or 3 elements of a symmetric matrix. Rows come last: numpy is fast along its last
axis, and there are many rows and few groups.
Source: Golub and Pereyra (1973) for solving the level inside; Marquardt (1963) for the damping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depthrate.tasks.fits.least_squares import Array, Shape, residuals
from depthrate.tasks.fits.model import CurveFamily
from depthrate.tasks.fits.threads import BLOCK_ROWS, in_threads, parts_of

MAX_STEPS = 100
"""Maximum steps per row. A row takes 1 to 10, unless the points do not determine the exponent."""
TOLERANCE = 1e-11
"""Convergence tolerance: the RMS change of the curve in log space by a row's step."""
CACHE_VALUES = 40_000
"""Maximum number of values (rows times groups) computed at once, so that temporaries fit in the core's cache."""
MOST = 0.9
"""Minimum share of active rows at which the whole block continues: removing the others would cost more than it saves."""
SMALLEST = 1e-300
"""Minimum divisor, against division by zero. Where it applies, the numerator is zero."""


def minimise(family: CurveFamily, theta_PC: Array, mean_GCB: Array, mass_GC: Array, tolerance_C: Array) -> Array:
    """Minimise the squares within bounds with Levenberg-Marquardt, many rows at once, and return theta [P, C, B].

    The B rows of a curve start from the same theta. A row has converged when the RMS change of the curve by the next
    step is below the tolerance or, extrapolating from shrinking steps, by the step after it.
    """
    shape, share_GC = family.shape, mass_GC / mass_GC.sum(0)
    curves = (theta_PC, family.ref_C, share_GC, family.lower_PC, family.upper_PC, tolerance_C**2)
    found = in_threads(
        lambda block: _descend(shape, _start(shape, mean_GCB[:, block], *(part[..., block] for part in curves))),
        parts_of(len(family.ref_C), at_most=BLOCK_ROWS // mean_GCB.shape[2], at_least=BLOCK_ROWS),
    )
    return np.concatenate(found, axis=1).reshape(-1, *mean_GCB.shape[1:])


@dataclass(frozen=True)
class _Rows:
    """Current theta of each row, with the squares and derivatives at that point."""

    theta_PR: Array
    squares_R: Array
    gradient_PR: Array
    """Negative gradient of half the squares, the descent direction."""
    normal_TR: Array
    """Upper triangle of the Jacobian's normal matrix, T = 1 or 3."""

    def take(self, rows: np.ndarray) -> _Rows:
        return _Rows(*(part.take(rows, axis=-1) for part in self.parts))

    def put(self, rows: np.ndarray, values: _Rows) -> None:
        for part, value in zip(self.parts, values.parts, strict=True):
            part[..., rows] = value

    @property
    def parts(self) -> tuple[Array, Array, Array, Array]:
        """All arrays, rows last."""
        return self.theta_PR, self.squares_R, self.gradient_PR, self.normal_TR

    def curve_moved(self, step_PR: Array) -> Array:
        """Return the mean squares [R] of the curve's change in a step, to first order."""
        if len(step_PR) == 1:
            return np.asarray(self.normal_TR[0] * step_PR[0] ** 2)
        # Use a sum of squares, since the terms of the quadratic form cancel in a straight valley.
        first_R, cross_R, second_R = self.normal_TR
        ratio_R = cross_R / np.maximum(first_R, SMALLEST)
        along_R, across_R = step_PR[0] + ratio_R * step_PR[1], np.maximum(second_R - ratio_R * cross_R, 0.0)
        return np.asarray(first_R * along_R**2 + across_R * step_PR[1] ** 2)


@dataclass(frozen=True)
class _Descent:
    """State of the rows that have not converged."""

    rows: _Rows
    damping_R: Array
    before_R: Array
    """Mean squared change of the curve by the previous step. 0 before the first step and after a rejected one."""
    place_R: np.ndarray
    """Index of each row in the result."""
    mean_GR: Array
    design: tuple[Array, ...]
    """ref_R, share_GR, lower_PR, upper_PR and the squared tolerance. An array equal for all rows has shape [..., 1]."""

    def take(self, go: np.ndarray) -> _Descent:
        rows, parts = self.rows.take(go), (self.damping_R[go], self.before_R[go], self.place_R[go])
        design = tuple(part if part.shape[-1] == 1 else part.take(go, axis=-1) for part in self.design)
        return _Descent(rows, *parts, self.mean_GR.take(go, axis=1), design)


def _descend(shape: Shape, descent: _Descent) -> Array:
    """Iterate until every row has converged and return theta [P, R]."""
    found_PR = descent.rows.theta_PR.copy()
    for _ in range(MAX_STEPS):
        rows, (_, _, lower_PR, upper_PR, limit_R) = descent.rows, descent.design
        step_PR = _step(rows, lower_PR, upper_PR, descent.damping_R)
        moved_R = rows.curve_moved(step_PR)
        # The ratio of steps predicts the length of the step after next, unless damping shortened them.
        shorter_R = np.minimum(moved_R / np.maximum(descent.before_R, SMALLEST), 1.0)
        np.maximum(shorter_R, (descent.damping_R > 0.01) | (descent.before_R == 0), out=shorter_R)
        # Steps below 1e-8 of the residuals change the squares by less than their rounding error.
        far_R = moved_R * shorter_R > limit_R + 1e-16 * rows.squares_R
        if np.count_nonzero(far_R) < MOST * len(far_R):
            go, done = np.flatnonzero(far_R), np.flatnonzero(~far_R)
            # Take a last step only after another step: if the curve does not determine theta, the step is long and its
            # result is not checked.
            last_PR = np.clip(rows.theta_PR + step_PR * (shorter_R < 1), lower_PR, upper_PR)
            found_PR[:, descent.place_R[done]] = last_PR[:, done]
            if not len(go):
                return found_PR
            descent, step_PR, moved_R = descent.take(go), step_PR.take(go, axis=1), moved_R[go]
        descent = _stepped(shape, descent, step_PR, moved_R)
    found_PR[:, descent.place_R] = descent.rows.theta_PR
    return found_PR


def _stepped(shape: Shape, descent: _Descent, step_PR: Array, moved_R: Array) -> _Descent:
    before, (ref_R, share_GR, lower_PR, upper_PR, _) = descent.rows, descent.design
    theta_PR = np.clip(before.theta_PR + step_PR, lower_PR, upper_PR)  # only corrects rounding
    after = _rows_at(shape, theta_PR, ref_R, descent.mean_GR, share_GR)
    # Increase the damping after a step that gained much less than predicted: it went too far, as would the next one.
    promised_R = 2 * np.einsum("pr,pr->r", before.gradient_PR, step_PR) - moved_R
    gain_R = (before.squares_R - after.squares_R) / np.maximum(promised_R, 1e-100)
    damping_R = descent.damping_R * (0.1 + 0.9 * (gain_R < 0.75) + 3 * (gain_R < 0.25))
    np.maximum(damping_R, 1e-9, out=damping_R)
    # Reject worse steps and increase the damping. The margin prevents rounding from rejecting the last steps.
    worse = np.flatnonzero(after.squares_R > before.squares_R * (1 + 1e-12))
    if len(worse):
        damping_R[worse] = np.minimum(damping_R[worse] * 7.5, 1e15)
        moved_R[worse] = 0
        after.put(worse, before.take(worse))
    return _Descent(after, damping_R, moved_R, descent.place_R, descent.mean_GR, descent.design)


def _start(
    shape: Shape,
    mean_GCB: Array,
    theta_PC: Array,
    ref_C: Array,
    share_GC: Array,
    lower_PC: Array,
    upper_PC: Array,
    limit_C: Array,
) -> _Descent:
    """Return the initial state of the rows of some curves. Values that a curve's rows share are computed once."""
    num_groups, num_curves, num_rows = mean_GCB.shape
    _, shape_GC, jacobian_PGC = residuals(shape, theta_PC, ref_C, np.zeros((num_groups, 1)), share_GC)
    residual_GCB = mean_GCB + shape_GC[..., None]
    residual_GCB -= np.einsum("gc,gcb->cb", share_GC, residual_GCB)
    squares_CB = np.einsum("gcb,gcb,gc->cb", residual_GCB, residual_GCB, share_GC)
    gradient_PCB = np.einsum("pgc,gcb->pcb", jacobian_PGC * share_GC, residual_GCB)
    theta_PR, normal_TR = (np.repeat(part, num_rows, axis=-1) for part in (theta_PC, _normal(jacobian_PGC, share_GC)))
    rows = _Rows(theta_PR, squares_CB.reshape(-1), gradient_PCB.reshape(-1, num_curves * num_rows), normal_TR)
    design = tuple(_of_each_row(part, num_rows) for part in (ref_C, share_GC, lower_PC, upper_PC, limit_C))
    place_R = np.arange(len(rows.squares_R))
    damping_R, before_R = np.full(len(place_R), 1e-4), np.zeros(len(place_R))
    return _Descent(rows, damping_R, before_R, place_R, mean_GCB.reshape(num_groups, -1), design)


def _of_each_row(part_C: Array, num_rows: int) -> Array:
    """Repeat each curve's values for its rows, or return them once if all curves agree."""
    shared_1 = part_C[..., :1]
    return shared_1 if (part_C == shared_1).all() else np.repeat(part_C, num_rows, axis=-1)


def _rows_at(shape: Shape, theta_PR: Array, ref_R: Array, mean_GR: Array, share_GR: Array) -> _Rows:
    num_parameters, num_rows = theta_PR.shape
    sizes = ((num_rows,), (num_parameters, num_rows), (num_parameters * (num_parameters + 1) // 2, num_rows))
    rows = _Rows(theta_PR, *(np.empty(size) for size in sizes))
    at_once = max(1, CACHE_VALUES // len(mean_GR))
    for first in range(0, num_rows, at_once):
        part = slice(first, first + at_once)
        ref, share = (array if array.shape[-1] == 1 else array[..., part] for array in (ref_R, share_GR))
        curve_QGR = shape(theta_PR[:, part], ref)
        residual_GR, jacobian_PGR = np.subtract(mean_GR[:, part], curve_QGR[0], out=curve_QGR[0]), curve_QGR[1:]
        residual_GR -= np.einsum("gr,gr->r", share, residual_GR)
        weighted_GR = residual_GR * share
        np.einsum("gr,gr->r", residual_GR, weighted_GR, out=rows.squares_R[part])
        # The weighted residuals sum to zero, so a constant over G in the Jacobian does not matter.
        np.einsum("pgr,gr->pr", jacobian_PGR, weighted_GR, out=rows.gradient_PR[:, part])
        rows.normal_TR[:, part] = _normal(jacobian_PGR, share)
    return rows


def _normal(jacobian_PGR: Array, share_GR: Array) -> Array:
    """Return the upper triangle of the normal matrix, [T, R]: products of the Jacobian minus products of its means."""
    weighted_PGR = jacobian_PGR * share_GR
    mean_PR = np.add.reduce(weighted_PGR, axis=1)
    pairs = [(p, q) for p in range(len(jacobian_PGR)) for q in range(p, len(jacobian_PGR))]
    normal_TR = np.empty((len(pairs), mean_PR.shape[1]))
    for normal_R, (p, q) in zip(normal_TR, pairs, strict=True):
        np.einsum("gr,gr->r", jacobian_PGR[p], weighted_PGR[q], out=normal_R)
        normal_R -= mean_PR[p] * mean_PR[q]
    np.maximum(normal_TR[::2], 0.0, out=normal_TR[::2])  # rounding
    return normal_TR


def _step(rows: _Rows, lower_PR: Array, upper_PR: Array, damping_R: Array) -> Array:
    """Return the damped step [P, R] within the box."""
    gradient_PR, diagonal_PR = rows.gradient_PR, rows.normal_TR[::2]
    lowest_PR, highest_PR = lower_PR - rows.theta_PR, upper_PR - rows.theta_PR
    # Fix a parameter at its bound if its step would leave the box. The others move as if it were known.
    pinned_PR = ((lowest_PR >= 0) & (gradient_PR <= 0)) | ((highest_PR <= 0) & (gradient_PR >= 0))
    gradient_PR = gradient_PR * ~pinned_PR
    # A share of the trace keeps a parameter without influence (the floor, when a = 0) from diverging.
    damped_PR = diagonal_PR * (1 + damping_R) + (1e-6 * damping_R * diagonal_PR.sum(0) + SMALLEST)
    if len(gradient_PR) == 1:
        return np.minimum(np.maximum(gradient_PR / damped_PR, lowest_PR), highest_PR)
    cross_R = rows.normal_TR[1] * ~(pinned_PR[0] | pinned_PR[1])
    # Eliminate the first parameter, since the determinant would lose digits in a straight valley.
    ratio_R = cross_R / damped_PR[0]
    step_PR = np.empty_like(gradient_PR)
    step_PR[1] = (gradient_PR[1] - ratio_R * gradient_PR[0]) / (damped_PR[1] - ratio_R * cross_R)
    np.clip(step_PR[1], lowest_PR[1], highest_PR[1], out=step_PR[1])
    # If the second stops at its bound, the first moves to the minimum on that edge.
    step_PR[0] = (gradient_PR[0] - cross_R * step_PR[1]) / damped_PR[0]
    np.clip(step_PR[0], lowest_PR[0], highest_PR[0], out=step_PR[0])
    return step_PR
