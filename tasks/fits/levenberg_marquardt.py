"""Weighted least squares of many small curves at once: level + shape(theta) on group means, with bounds (the box).

With Huber's function, squares count as lines from a threshold on: the gradient has the clipped residuals, and the normal matrix
those inside the threshold. The damping then scales with the normal matrix of all residuals, whose quadratic form lies above.

Shapes: C curves, B rows of a curve (resamples), R rows fitted at once, G groups (the distinct x, rising), P shape
parameters, Q = 1 + P, T = P (P + 1) / 2 elements of a symmetric matrix. Rows come last: numpy is fast along its last axis, and
there are many rows and few groups.
Sources: Golub and Pereyra (1973) for solving the level inside; Marquardt (1963) for the damping; Huber (1964), Robust
estimation of a location parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depthrate.tasks.fits.least_squares import Array, Shape, residuals, sum_of_squares
from depthrate.tasks.fits.model import CurveFamily
from depthrate.tasks.fits.threads import BLOCK_ROWS, in_threads, parts_of

MAX_STEPS = 50
"""Maximum steps per row and parameter, two at least. A row takes 1 to 10, unless the points do not determine a parameter."""
STEPS_TO_THRESHOLD = 4
"""Factor for the maximum steps with Huber's function, which first finds the residuals inside the threshold."""
TOLERANCE = 1e-11
"""Convergence tolerance: the RMS change of the curve in log space by a row's step."""
CACHE_VALUES = 40_000
"""Maximum number of values (rows times groups) computed at once, so that temporaries fit in the core's cache."""
MOST = 0.9
"""Minimum share of active rows at which the whole block continues: removing the others would cost more than it saves."""
ROUNDING = 1e-14
"""Share of a parameter's squares below which what the others leave of them is rounding."""
SMALLEST = 1e-300
"""Minimum divisor, against division by zero. Where it applies, the numerator is zero."""


def minimise(
    family: CurveFamily,
    theta_PC: Array,
    mean_GCB: Array,
    mass_GC: Array,
    tolerance_C: Array,
    threshold: float | None = None,
    max_steps: int | None = None,
) -> Array:
    """Minimise the squares within bounds with Levenberg-Marquardt, many rows at once, and return theta [P, C, B].

    The B rows of a curve start from the same theta. A row has converged when the RMS change of the curve by the next
    step is below the tolerance or, extrapolating from shrinking steps, by the step after it.

    Args:
        family: The curves, one for each theta.
        theta_PC: Starts.
        mean_GCB: Values to fit.
        mass_GC: Their weights.
        tolerance_C: Tolerance of each curve.
        threshold: Residual from which Huber's function replaces the square. None: squares.
        max_steps: Maximum number of steps. Default: MAX_STEPS for each parameter.
    """
    if max_steps is None:
        max_steps = MAX_STEPS * max(len(theta_PC), 2) * (1 if threshold is None else STEPS_TO_THRESHOLD)
    problem, share_GC = _Problem(family.shape, family.has_level, threshold), mass_GC / mass_GC.sum(0)
    curves = (theta_PC, family.ref_C, share_GC, family.lower_PC, family.upper_PC, tolerance_C**2)
    found = in_threads(
        lambda block: _descend(
            problem, _start(problem, mean_GCB[:, block], *(part[..., block] for part in curves)), max_steps
        ),
        parts_of(len(family.ref_C), at_most=BLOCK_ROWS // mean_GCB.shape[2], at_least=BLOCK_ROWS),
    )
    return np.concatenate(found, axis=1).reshape(-1, *mean_GCB.shape[1:])


def losses_left(
    family: CurveFamily, theta_PR: Array, mean_GR: Array, mass_GR: Array, threshold: float | None = None
) -> Array:
    """Return the weighted squares [R] around the curves of theta, or twice Huber's function."""
    share_GR = mass_GR / mass_GR.sum(0)
    _, residual_GR, _ = residuals(family.shape, theta_PR, family.ref_C, mean_GR, share_GR, has_level=family.has_level)
    if threshold is None:
        return sum_of_squares(residual_GR, mass_GR)
    return np.asarray((mass_GR * _huber(residual_GR, threshold)).sum(0))


def _huber(residual_GR: Array, threshold: float) -> Array:
    """Return twice Huber's function."""
    size_GR = np.abs(residual_GR)
    return np.where(size_GR <= threshold, size_GR**2, threshold * (2 * size_GR - threshold))


@dataclass(frozen=True)
class _Problem:
    """What all rows have in common."""

    shape: Shape
    has_level: bool
    threshold: float | None


@dataclass(frozen=True)
class _Rows:
    """Current theta of each row, with the squares and derivatives at that point."""

    theta_PR: Array
    squares_R: Array
    gradient_PR: Array
    """Negative gradient of half the squares, the descent direction."""
    normal_TR: Array
    """Upper triangle of the Jacobian's normal matrix."""
    majorant_PR: Array | None = None
    """Diagonal of the normal matrix of all residuals, with Huber's function."""

    def take(self, rows: np.ndarray) -> _Rows:
        return _Rows(*(part.take(rows, axis=-1) for part in self.parts))

    def put(self, rows: np.ndarray, values: _Rows) -> None:
        for part, value in zip(self.parts, values.parts, strict=True):
            part[..., rows] = value

    @property
    def parts(self) -> tuple[Array, ...]:
        """All arrays, rows last."""
        parts = self.theta_PR, self.squares_R, self.gradient_PR, self.normal_TR
        return parts if self.majorant_PR is None else (*parts, self.majorant_PR)

    @property
    def scale_PR(self) -> Array:
        """Diagonal of the normal matrix of all residuals, with which the damping scales."""
        return self.normal_TR[_diagonal(len(self.theta_PR))] if self.majorant_PR is None else self.majorant_PR

    def curve_moved(self, step_PR: Array) -> Array:
        """Return the mean squares [R] of the curve's change in a step, to first order."""
        # Use a sum of squares, since the terms of the quadratic form cancel in a straight valley.
        normal_PPR, moved_R = _square(self.normal_TR, len(step_PR)), np.zeros(step_PR.shape[1])
        smallest_PR = ROUNDING * self.scale_PR
        for p, along_R in enumerate(step_PR):
            pivot_R = np.maximum(normal_PPR[p, p], 0.0)
            ratio_QR = (pivot_R > smallest_PR[p]) * normal_PPR[p, p + 1 :] / np.maximum(pivot_R, SMALLEST)
            moved_R += pivot_R * (along_R + (ratio_QR * step_PR[p + 1 :]).sum(0)) ** 2
            normal_PPR[p + 1 :, p + 1 :] -= ratio_QR[:, None] * normal_PPR[p, p + 1 :]
        return moved_R


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


def _descend(problem: _Problem, descent: _Descent, max_steps: int) -> Array:
    """Iterate until every row has converged and return theta [P, R]."""
    found_PR = descent.rows.theta_PR.copy()
    for _ in range(max_steps):
        rows, (_, _, lower_PR, upper_PR, limit_R) = descent.rows, descent.design
        step_PR = _step(rows, lower_PR, upper_PR, descent.damping_R)
        # With Huber's function, the normal matrix lacks the residuals beyond the threshold.
        is_quadratic = problem.threshold is None
        moved_R = rows.curve_moved(step_PR) if is_quadratic else np.einsum("pr,pr->r", rows.gradient_PR, step_PR)
        # The ratio of steps predicts the length of the step after next, unless damping shortened them.
        with np.errstate(over="ignore"):  # a ratio that overflows counts as 1, like any above it
            shorter_R = np.minimum(moved_R / np.maximum(descent.before_R, SMALLEST), 1.0)
        is_shortened_R = (descent.damping_R > 0.01) | (problem.threshold is not None)
        np.maximum(shorter_R, is_shortened_R | (descent.before_R == 0), out=shorter_R)
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
        descent = _stepped(problem, descent, step_PR, moved_R)
    found_PR[:, descent.place_R] = descent.rows.theta_PR
    return found_PR


def _stepped(problem: _Problem, descent: _Descent, step_PR: Array, moved_R: Array) -> _Descent:
    before, (ref_R, share_GR, lower_PR, upper_PR, _) = descent.rows, descent.design
    theta_PR = np.clip(before.theta_PR + step_PR, lower_PR, upper_PR)  # only corrects rounding
    after = _rows_at(problem, theta_PR, ref_R, descent.mean_GR, share_GR)
    # Increase the damping after a step that gained much less than predicted: it went too far, as would the next one.
    promised_R = 2 * np.einsum("pr,pr->r", before.gradient_PR, step_PR) - moved_R
    gain_R = (before.squares_R - after.squares_R) / np.maximum(promised_R, 1e-100)
    damping_R = descent.damping_R * (0.1 + 0.9 * (gain_R < 0.75) + 3 * (gain_R < 0.25))
    np.clip(damping_R, 1e-9, 1e15, out=damping_R)
    # Reject worse steps and increase the damping. The margin prevents rounding from rejecting the last steps.
    worse = np.flatnonzero(after.squares_R > before.squares_R * (1 + 1e-12))
    if len(worse):
        damping_R[worse] = np.minimum(damping_R[worse] * 7.5, 1e15)
        moved_R[worse] = 0
        after.put(worse, before.take(worse))
    return _Descent(after, damping_R, moved_R, descent.place_R, descent.mean_GR, descent.design)


def _start(
    problem: _Problem,
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
    design = tuple(_of_each_row(part, num_rows) for part in (ref_C, share_GC, lower_PC, upper_PC, limit_C))
    theta_PR = np.repeat(theta_PC, num_rows, axis=-1)
    if problem.threshold is None:
        has_level = problem.has_level
        _, shape_GC, jacobian_PGC = residuals(
            problem.shape, theta_PC, ref_C, np.zeros((num_groups, 1)), share_GC, has_level=has_level
        )
        residual_GCB = mean_GCB + shape_GC[..., None]
        if has_level:
            residual_GCB -= np.einsum("gc,gcb->cb", share_GC, residual_GCB)
        squares_CB = np.einsum("gcb,gcb,gc->cb", residual_GCB, residual_GCB, share_GC)
        gradient_PCB = np.einsum("pgc,gcb->pcb", jacobian_PGC * share_GC, residual_GCB)
        normal_TR = np.repeat(_normal(jacobian_PGC, share_GC, has_level=has_level), num_rows, axis=-1)
        gradient_PR = gradient_PCB.reshape(-1, num_curves * num_rows)
        rows = _Rows(theta_PR, squares_CB.reshape(-1), gradient_PR, normal_TR)
    else:
        rows = _rows_at(problem, theta_PR, design[0], mean_GCB.reshape(num_groups, -1), design[1])
    place_R = np.arange(len(rows.squares_R))
    # With Huber's function, few residuals may be inside the threshold. A damping of 1 makes up for those beyond it.
    damping_R, before_R = np.full(len(place_R), 1e-4 if problem.threshold is None else 1.0), np.zeros(len(place_R))
    return _Descent(rows, damping_R, before_R, place_R, mean_GCB.reshape(num_groups, -1), design)


def _of_each_row(part_C: Array, num_rows: int) -> Array:
    """Repeat each curve's values for its rows, or return them once if all curves agree."""
    shared_1 = part_C[..., :1]
    return shared_1 if (part_C == shared_1).all() else np.repeat(part_C, num_rows, axis=-1)


def _rows_at(problem: _Problem, theta_PR: Array, ref_R: Array, mean_GR: Array, share_GR: Array) -> _Rows:
    num_parameters, num_rows = theta_PR.shape
    sizes = (
        (num_rows,),
        (num_parameters, num_rows),
        (num_parameters * (num_parameters + 1) // 2, num_rows),
        *([] if problem.threshold is None else [(num_parameters, num_rows)]),
    )
    rows = _Rows(theta_PR, *(np.empty(size) for size in sizes))
    at_once = max(1, CACHE_VALUES // len(mean_GR))
    for first in range(0, num_rows, at_once):
        part = slice(first, first + at_once)
        ref, share = (array if array.shape[-1] == 1 else array[..., part] for array in (ref_R, share_GR))
        curve_QGR = problem.shape(theta_PR[:, part], ref)
        residual_GR, jacobian_PGR = np.subtract(mean_GR[:, part], curve_QGR[0], out=curve_QGR[0]), curve_QGR[1:]
        if problem.has_level:
            residual_GR -= np.einsum("gr,gr->r", share, residual_GR)
        weighted_GR = residual_GR * share
        if problem.threshold is None:
            np.einsum("gr,gr->r", residual_GR, weighted_GR, out=rows.squares_R[part])
            curvature_GR = share
        else:
            size_GR = np.abs(residual_GR)
            rows.squares_R[part] = (share * _huber(residual_GR, problem.threshold)).sum(0)
            weighted_GR = share * np.clip(residual_GR, -problem.threshold, problem.threshold)
            curvature_GR = np.where(size_GR <= problem.threshold, share, 0.0)
        # With a level, the weighted residuals sum to zero, so a constant over G in the Jacobian does not matter.
        np.einsum("pgr,gr->pr", jacobian_PGR, weighted_GR, out=rows.gradient_PR[:, part])
        rows.normal_TR[:, part] = _normal(jacobian_PGR, curvature_GR, has_level=problem.has_level)
        if problem.threshold is not None and rows.majorant_PR is not None:
            above_GR = share * problem.threshold / np.maximum(size_GR, problem.threshold)
            np.einsum("pgr,gr,pgr->pr", jacobian_PGR, above_GR, jacobian_PGR, out=rows.majorant_PR[:, part])
    return rows


def _normal(jacobian_PGR: Array, share_GR: Array, *, has_level: bool) -> Array:
    """Return the upper triangle of the normal matrix, [T, R]: with a level, less the products of the Jacobian's means."""
    weighted_PGR = jacobian_PGR * share_GR
    mean_PR = np.add.reduce(weighted_PGR, axis=1)
    pairs = [(p, q) for p in range(len(jacobian_PGR)) for q in range(p, len(jacobian_PGR))]
    normal_TR = np.empty((len(pairs), mean_PR.shape[1]))
    for normal_R, (p, q) in zip(normal_TR, pairs, strict=True):
        np.einsum("gr,gr->r", jacobian_PGR[p], weighted_PGR[q], out=normal_R)
        if has_level:
            normal_R -= mean_PR[p] * mean_PR[q]
    for place in _diagonal(len(jacobian_PGR)):
        np.maximum(normal_TR[place], 0.0, out=normal_TR[place])  # rounding
    return normal_TR


def _diagonal(num_parameters: int) -> list[int]:
    """Return the places of the diagonal in the upper triangle."""
    return [p * num_parameters - p * (p - 1) // 2 for p in range(num_parameters)]


def _square(normal_TR: Array, num_parameters: int) -> Array:
    """Return the symmetric matrix [P, P, R] of an upper triangle."""
    first, rest = np.minimum.outer(at := np.arange(num_parameters), at), np.abs(np.subtract.outer(at, at))
    return np.asarray(normal_TR[np.array(_diagonal(num_parameters), dtype=np.int64)[first] + rest])


def _step(rows: _Rows, lower_PR: Array, upper_PR: Array, damping_R: Array) -> Array:
    """Return the damped step [P, R] within the box."""
    gradient_PR, num_parameters = rows.gradient_PR, len(rows.gradient_PR)
    lowest_PR, highest_PR = lower_PR - rows.theta_PR, upper_PR - rows.theta_PR
    # Fix a parameter at its bound if its step would leave the box. The others move as if it were known.
    pinned_PR = ((lowest_PR >= 0) & (gradient_PR <= 0)) | ((highest_PR <= 0) & (gradient_PR >= 0))
    left_PR = gradient_PR * ~pinned_PR
    # A share of the trace keeps a parameter without influence (the floor, when a = 0) from diverging.
    scale_PR = rows.scale_PR
    added_PR = scale_PR * damping_R + (1e-6 * damping_R * scale_PR.sum(0) + SMALLEST)
    normal_PPR = _square(rows.normal_TR, num_parameters)
    for p in range(num_parameters):
        normal_PPR[p, p + 1 :] *= ~(pinned_PR[p] | pinned_PR[p + 1 :])
        normal_PPR[p, p] += added_PR[p]
    # Eliminate the first parameters, since determinants would lose digits in a straight valley.
    for p in range(num_parameters - 1):
        ratio_QR = normal_PPR[p, p + 1 :] / normal_PPR[p, p]
        left_PR[p + 1 :] -= ratio_QR * left_PR[p]
        normal_PPR[p + 1 :, p + 1 :] -= ratio_QR[:, None] * normal_PPR[p, p + 1 :]
        # rounding: what the others leave cannot be below the damping
        np.maximum(normal_PPR[p + 1, p + 1], 0.5 * added_PR[p + 1], out=normal_PPR[p + 1, p + 1])
    step_PR = np.zeros_like(left_PR)
    for p in reversed(range(num_parameters)):
        # If a later parameter stops at its bound, the earlier ones move to the minimum on that edge.
        left_PR[p] -= (normal_PPR[p, p + 1 :] * step_PR[p + 1 :]).sum(0)
        np.clip(left_PR[p] / normal_PPR[p, p], lowest_PR[p], highest_PR[p], out=step_PR[p])
    return step_PR
