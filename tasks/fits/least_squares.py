"""Weighted least squares of many small curves at once: level + shape(theta) through group means, in a box.

Shapes: R rows fitted at once (resamples, starting points, curves), G groups (the distinct x, rising), P shape parameters
(one or two). Rows come last: numpy is fast along its last axis, and there are many rows and few groups.
Source: Golub and Pereyra (1973) for solving the level inside; Marquardt (1963) for the damping.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Result = TypeVar("Result")
Shape: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""(theta [P, R], the rows' reference log x [R]) -> shape [G, R] and its Jacobian [P, G, R] up to a constant over G."""

MAX_STEPS = 100
"""Of Levenberg-Marquardt; a row takes 3 to 20 unless the points leave the exponent open."""
BLOCK_ROWS = 1 << 14
"""Rows a thread works on together: enough to make numpy's calls cheap, few enough to stay near the core."""


def residuals(
    shape: Shape, theta_PR: Array, ref_R: Array, mean_GR: Array, share_GR: Array
) -> tuple[Array, Array, Array]:
    """Return the level [R], the residuals [G, R] and the shape's Jacobian [P, G, R], the level solved for in both.

    share_GR: each group's share of its row's mass.
    """
    shape_GR, jacobian_PGR = shape(theta_PR, ref_R)
    residual_GR = mean_GR - shape_GR
    level_R = np.einsum("gr,gr->r", residual_GR, share_GR)
    residual_GR -= level_R
    return level_R, residual_GR, jacobian_PGR - np.einsum("pgr,gr->pr", jacobian_PGR, share_GR)[:, None]


def sum_of_squares(residual_GR: Array, mass_GR: Array) -> Array:
    """Return the weighted squares [R]."""
    return np.asarray(np.einsum("gr,gr,gr->r", residual_GR, residual_GR, mass_GR))


def squares_left(shape: Shape, theta_PR: Array, ref_R: Array, mean_GR: Array, mass_GR: Array) -> Array:
    """Return the weighted squares [R] around the curves of theta."""
    _, residual_GR, _ = residuals(shape, theta_PR, ref_R, mean_GR, mass_GR / mass_GR.sum(0))
    return sum_of_squares(residual_GR, mass_GR)


def influence(jacobian_PGR: Array, mass_GR: Array) -> Array:
    """Return d theta / d mean, [P, G, R], of least squares with this centred Jacobian; NaN where theta is left open.

    For a shape linear in theta this is the solution itself: theta = influence @ mean.
    """
    root_GR = np.sqrt(mass_GR)
    scaled_PGR = jacobian_PGR * root_GR
    length_PR = np.sqrt((scaled_PGR**2).sum(1))
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_RPG = np.moveaxis(scaled_PGR / length_PR[:, None], -1, 0)
    gram_RPP = unit_RPG @ np.swapaxes(unit_RPG, 1, 2)
    # columns as good as parallel, or zero, leave theta open
    open_R = ~np.isfinite(gram_RPP).all((1, 2))
    gram_RPP[open_R] = np.eye(len(jacobian_PGR))
    open_R |= np.linalg.cond(gram_RPP) > 1e12
    gram_RPP[open_R] = np.eye(len(jacobian_PGR))
    solved_PGR = np.moveaxis(np.linalg.solve(gram_RPP, unit_RPG), 0, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        solved_PGR = solved_PGR / length_PR[:, None] * root_GR
    return np.where(open_R, np.nan, solved_PGR)


def minimise(
    shape: Shape,
    theta_PC: Array,
    ref_C: Array,
    mean_GCB: Array,
    mass_GC: Array,
    lower_PC: Array,
    upper_PC: Array,
    tolerance_C: Array,
) -> Array:
    """Return theta [P, C, B] of least squares in its box: Levenberg-Marquardt, many rows at once on every core.

    The B rows of a curve start from the same theta. A row is done when its next step would move the curve by less than
    its tolerance, root mean square.
    """
    curves = (theta_PC, ref_C, mass_GC, lower_PC, upper_PC, tolerance_C)
    num_curves, at_once = len(ref_C), max(1, BLOCK_ROWS // mean_GCB.shape[2])
    found = in_threads(
        lambda block: _minimise_block(shape, mean_GCB[:, block], *(part[..., block] for part in curves)),
        [slice(first, first + at_once) for first in range(0, num_curves, at_once)],
    )
    return np.concatenate(found, axis=1).reshape(-1, *mean_GCB.shape[1:])


def in_threads(work: Callable[[slice], Result], parts: Sequence[slice]) -> list[Result]:
    """Return work(part) of each part, in order, done on every core we may use."""
    # numpy's long calls let go of the interpreter's lock
    num_threads = min(len(parts), len(os.sched_getaffinity(0)))
    if num_threads < 2:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(work, parts))


def _minimise_block(
    shape: Shape,
    mean_GCB: Array,
    theta_PC: Array,
    ref_C: Array,
    mass_GC: Array,
    lower_PC: Array,
    upper_PC: Array,
    tolerance_C: Array,
) -> Array:
    num_groups, _, num_rows = mean_GCB.shape
    # what the rows of a curve share is computed once
    share_GC = mass_GC / mass_GC.sum(0)
    shape_GC, jacobian_PGC = shape(theta_PC, ref_C)
    jacobian_PGC = jacobian_PGC - np.einsum("pgc,gc->pc", jacobian_PGC, share_GC)[:, None]
    shared = (
        theta_PC,
        ref_C,
        share_GC,
        lower_PC,
        upper_PC,
        tolerance_C**2,
        jacobian_PGC,
        _normal(jacobian_PGC, share_GC),
    )
    theta_PR, ref_R, share_GR, lower_PR, upper_PR, limit_R, jacobian_PGR, normal_PPR = (
        np.repeat(part, num_rows, axis=-1) for part in shared
    )
    mean_GR, residual_GR = mean_GCB.reshape(num_groups, -1), (mean_GCB - shape_GC[..., None]).reshape(num_groups, -1)
    residual_GR -= np.einsum("gr,gr->r", residual_GR, share_GR)
    squares_R, damping_R = sum_of_squares(residual_GR, share_GR), np.full(len(ref_R), 1e-4)
    found_PR, live = theta_PR.copy(), np.arange(len(ref_R))  # live: the rows not yet done
    for _ in range(MAX_STEPS):
        gradient_PR = np.einsum("pgr,gr,gr->pr", jacobian_PGR, residual_GR, share_GR)
        step_PR = _step(theta_PR, gradient_PR, normal_PPR, lower_PR, upper_PR, damping_R)
        after_PR = np.minimum(np.maximum(theta_PR + step_PR, lower_PR), upper_PR)  # but for rounding it is inside
        moved_R = sum_of_squares(np.einsum("pr,pgr->gr", step_PR, jacobian_PGR), share_GR)
        # steps below 1e-8 of the residuals change the squares by less than their rounding
        far_R = moved_R > limit_R + 1e-16 * squares_R
        go, done = np.flatnonzero(far_R), np.flatnonzero(~far_R)
        # the last step is not made: where the curve says nothing of theta it is long, and nobody looks where it ends
        found_PR[:, live[done]] = theta_PR[:, done]
        if not len(go):
            break
        promised_R = (2 * (gradient_PR * step_PR).sum(0) - moved_R)[go]
        live = live[go]
        ref_R, limit_R, damping_R, before_R = (part[go] for part in (ref_R, limit_R, damping_R, squares_R))
        after_PR, lower_PR, upper_PR, mean_GR, share_GR = (
            part.take(go, axis=1) for part in (after_PR, lower_PR, upper_PR, mean_GR, share_GR)
        )
        _, after_residual_GR, after_jacobian_PGR = residuals(shape, after_PR, ref_R, mean_GR, share_GR)
        after_R = sum_of_squares(after_residual_GR, share_GR)
        # a step that gained much less than promised went too far, and without more damping so would the next
        gain_R = (before_R - after_R) / np.maximum(promised_R, 1e-100)
        damping_R = np.maximum(damping_R * np.where(gain_R < 0.75, np.where(gain_R < 0.25, 4.0, 1.0), 0.1), 1e-9)
        # back to where it was, with much more damping; rounding must not turn the last steps away
        worse = np.flatnonzero(after_R > before_R * (1 + 1e-12))
        damping_R[worse] = np.minimum(damping_R[worse] * 7.5, 1e15)
        was = go[worse]
        after_PR[:, worse], after_R[worse] = theta_PR[:, was], squares_R[was]
        after_residual_GR[:, worse], after_jacobian_PGR[..., worse] = residual_GR[:, was], jacobian_PGR[..., was]
        theta_PR, squares_R, residual_GR, jacobian_PGR = after_PR, after_R, after_residual_GR, after_jacobian_PGR
        normal_PPR = _normal(jacobian_PGR, share_GR)
    else:
        found_PR[:, live] = theta_PR
    return found_PR


def _normal(jacobian_PGR: Array, share_GR: Array) -> Array:
    return np.einsum("pgr,qgr->pqr", jacobian_PGR * share_GR, jacobian_PGR)


def _step(
    theta_PR: Array, gradient_PR: Array, normal_PPR: Array, lower_PR: Array, upper_PR: Array, damping_R: Array
) -> Array:
    """Return the damped step [P, R] that stays in the box."""
    diagonal_PR = np.einsum("ppr->pr", normal_PPR)
    # a parameter at its bound that wants to leave the box stays, and the others move as if it were known
    pinned_PR = ((theta_PR <= lower_PR) & (gradient_PR <= 0)) | ((theta_PR >= upper_PR) & (gradient_PR >= 0))
    free_PR = ~pinned_PR
    gradient_PR = gradient_PR * free_PR
    # the share of the trace keeps a parameter without influence (the floor, when a = 0) from running away
    trace_R = diagonal_PR.sum(0)
    damped_PR = diagonal_PR * free_PR + damping_R * (diagonal_PR + 1e-6 * trace_R)
    damped_PR += pinned_PR | (trace_R == 0)  # a pinned row of zeros stays solvable
    lowest_PR, highest_PR = lower_PR - theta_PR, upper_PR - theta_PR
    if len(theta_PR) == 1:
        return np.minimum(np.maximum(gradient_PR / damped_PR, lowest_PR), highest_PR)
    cross_R = normal_PPR[0, 1] * free_PR.all(0)
    # by elimination of the first: the determinant would lose digits in a straight valley
    ratio_R = cross_R / damped_PR[0]
    second_R = (gradient_PR[1] - ratio_R * gradient_PR[0]) / (damped_PR[1] - ratio_R * cross_R)
    second_R = np.minimum(np.maximum(second_R, lowest_PR[1]), highest_PR[1])
    # where the second stops at its bound, the first goes to the best place on that edge
    first_R = (gradient_PR[0] - cross_R * second_R) / damped_PR[0]
    return np.stack([np.minimum(np.maximum(first_R, lowest_PR[0]), highest_PR[0]), second_R])
