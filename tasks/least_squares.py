"""Weighted least squares of many small curves at once: level + shape(theta) through group means, in a box.

Shapes: R rows fitted at once (resamples, starting points, curves), G groups (the distinct x, rising), P shape parameters.
Source: Golub and Pereyra (1973) for solving the level inside; Marquardt (1963) for the damping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Shape: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""(theta [R, P], the rows' reference log x [R]) -> shape [R, G] and its Jacobian [R, G, P] up to a constant over G."""

MAX_STEPS = 100
"""Of Levenberg-Marquardt; a row takes 5 to 20 unless the points leave the exponent open."""


def residuals(
    shape: Shape, theta_RP: Array, ref_R: Array, mean_RG: Array, mass_RG: Array
) -> tuple[Array, Array, Array]:
    """Return the level [R], the residuals [R, G] and the shape's Jacobian [R, G, P], the level solved for in both."""
    share_RG = mass_RG / mass_RG.sum(1, keepdims=True)
    shape_RG, jacobian_RGP = shape(theta_RP, ref_R)
    level_R = ((mean_RG - shape_RG) * share_RG).sum(1)
    centred_RGP = jacobian_RGP - (share_RG[..., None] * jacobian_RGP).sum(1, keepdims=True)
    return level_R, mean_RG - shape_RG - level_R[:, None], centred_RGP


def sum_of_squares(residual_RG: Array, mass_RG: Array) -> Array:
    """Return the weighted squares [R]."""
    return np.asarray((residual_RG**2 * mass_RG).sum(1))


def influence(jacobian_RGP: Array, mass_RG: Array) -> Array:
    """Return d theta / d mean, [R, P, G], of least squares with this centred Jacobian; NaN where theta is left open.

    For a shape linear in theta this is the solution itself: theta = influence @ mean.
    """
    root_RG = np.sqrt(mass_RG)
    scaled_RGP = jacobian_RGP * root_RG[..., None]
    length_RP = np.sqrt((scaled_RGP**2).sum(1))
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_RGP = scaled_RGP / length_RP[:, None]
    gram_RPP = np.swapaxes(unit_RGP, 1, 2) @ unit_RGP
    # columns as good as parallel, or zero, leave theta open
    open_R = ~np.isfinite(gram_RPP).all((1, 2))
    gram_RPP[open_R] = np.eye(gram_RPP.shape[1])
    open_R |= np.linalg.cond(gram_RPP) > 1e12
    gram_RPP[open_R] = np.eye(gram_RPP.shape[1])
    solved_RPG = np.linalg.solve(gram_RPP, np.swapaxes(unit_RGP, 1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        solved_RPG = solved_RPG / length_RP[..., None] * root_RG[:, None]
    solved_RPG[open_R] = np.nan
    return solved_RPG


def minimise(
    shape: Shape,
    theta_RP: Array,
    ref_R: Array,
    mean_RG: Array,
    mass_RG: Array,
    lower_RP: Array,
    upper_RP: Array,
    tolerance_R: Array,
) -> Array:
    """Minimise each row's squares from theta_RP inside its box: Levenberg-Marquardt, all rows at once.

    A row is done when its step moves the curve by less than its tolerance, root mean square.
    """
    theta_RP = theta_RP.copy()
    damping_R = np.full(len(theta_RP), 1e-6)
    live = np.arange(len(theta_RP))  # the rows not yet done
    rows = (ref_R, mean_RG, mass_RG, lower_RP, upper_RP)
    before_RP = theta_RP
    _, residual_RG, jacobian_RGP = residuals(shape, before_RP, *rows[:3])
    squares_R = sum_of_squares(residual_RG, mass_RG)
    for _ in range(MAX_STEPS):
        ref, mean, mass, lower, upper = rows
        step_RP = _step(before_RP, residual_RG, jacobian_RGP, mass, lower, upper, damping_R)
        after_RP = np.clip(before_RP + step_RP, lower, upper)
        moved_RG = (jacobian_RGP @ (after_RP - before_RP)[..., None])[..., 0]
        promised_R = sum_of_squares(residual_RG - moved_RG, mass)
        _, after_residual_RG, after_jacobian_RGP = residuals(shape, after_RP, ref, mean, mass)
        after_R = sum_of_squares(after_residual_RG, mass)
        better_R = after_R <= squares_R * (1 + 1e-12)  # rounding must not turn the last steps away
        theta_RP[live[better_R]] = after_RP[better_R]
        # a step that gained much less than promised went too far, and without more damping so would the next
        gain_R = (squares_R - after_R) / np.maximum(squares_R - promised_R, 1e-100)
        factor_R = np.select([~better_R, gain_R < 0.25, gain_R < 0.75], [30.0, 4.0, 1.0], 0.1)
        # steps below 1e-8 of the residuals change the squares by less than their rounding
        limit_R = tolerance_R[live] ** 2 * mass.sum(1) + 1e-16 * squares_R
        go_R = sum_of_squares(moved_RG, mass) > limit_R
        if not go_R.any():
            break
        kept = better_R[go_R]
        before_RP = np.where(kept[:, None], after_RP[go_R], before_RP[go_R])
        residual_RG = np.where(kept[:, None], after_residual_RG[go_R], residual_RG[go_R])
        jacobian_RGP = np.where(kept[:, None, None], after_jacobian_RGP[go_R], jacobian_RGP[go_R])
        squares_R = np.where(kept, after_R[go_R], squares_R[go_R])
        damping_R = np.clip(damping_R * factor_R, 1e-9, 1e15)[go_R]
        live, rows = live[go_R], tuple(part[go_R] for part in rows)
    return theta_RP


def _step(
    theta_RP: Array,
    residual_RG: Array,
    jacobian_RGP: Array,
    mass_RG: Array,
    lower_RP: Array,
    upper_RP: Array,
    damping_R: Array,
) -> Array:
    """Return the damped step [R, P]."""
    weighted_RPG = np.swapaxes(jacobian_RGP * mass_RG[..., None], 1, 2)
    gradient_RP = (weighted_RPG @ residual_RG[..., None])[..., 0]
    normal_RPP = weighted_RPG @ jacobian_RGP
    diagonal_RP = np.diagonal(normal_RPP, axis1=1, axis2=2).copy()
    # a parameter at its bound that wants to leave the box stays, and the others move as if it were known
    pinned_RP = (theta_RP <= lower_RP) & (gradient_RP <= 0) | (theta_RP >= upper_RP) & (gradient_RP >= 0)
    free_RP = ~pinned_RP
    normal_RPP = normal_RPP * (free_RP[:, :, None] & free_RP[:, None, :])
    # the share of the trace keeps a parameter without influence (the floor, when a = 0) from running away
    damped_RP = damping_R[:, None] * (diagonal_RP + 1e-6 * diagonal_RP.sum(1, keepdims=True))
    damped_RP += (diagonal_RP.sum(1, keepdims=True) == 0) | pinned_RP  # a pinned row of zeros stays solvable
    system_RPP = normal_RPP + damped_RP[:, :, None] * np.eye(theta_RP.shape[1])
    if theta_RP.shape[1] == 2:  # LAPACK row by row would cost more than all the rest
        return _solve_two(system_RPP, gradient_RP * free_RP)
    return np.asarray((gradient_RP * free_RP) / system_RPP[..., 0])


def _solve_two(system_RPP: Array, right_RP: Array) -> Array:
    a_R, b_R, d_R = system_RPP[:, 0, 0], system_RPP[:, 0, 1], system_RPP[:, 1, 1]
    # by elimination of the second: the determinant a d - b^2 would lose digits in a straight valley
    ratio_R = b_R / d_R
    first_R = (right_RP[:, 0] - ratio_R * right_RP[:, 1]) / (a_R - ratio_R * b_R)
    return np.stack([first_R, (right_RP[:, 1] - b_R * first_R) / d_R], axis=1)
