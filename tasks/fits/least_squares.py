"""Least squares of curves, log y = level + shape(theta), on group means.

Shapes: R rows (curves, resamples of them), G groups (the distinct x, rising), P shape parameters, Q = 1 + P. Rows come last.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Shape: TypeAlias = Callable[[Array, Array], Array]
"""Function (theta [P, R], reference log x of the rows [R] or [1]) -> [1 + P, G, R]: the shape and its derivative with
respect to each parameter, in a new array that the caller may overwrite."""

MAX_CONDITION = 1e12
"""Condition number of the parameters' normal matrix above which they are not determined."""


def residuals(
    shape: Shape, theta_PR: Array, ref_R: Array, mean_GR: Array, share_GR: Array, *, has_level: bool
) -> tuple[Array, Array, Array]:
    """Return the level [R], and the residuals [G, R] and the shape's Jacobian [P, G, R] with the level eliminated.

    `share_GR`: share of each group in its row's mass, [G, 1] if equal for all rows. `has_level`: whether the level is free.
    Otherwise it is 0.
    """
    curve_QGR = shape(theta_PR, ref_R)
    np.subtract(mean_GR, curve_QGR[0], out=curve_QGR[0])
    if not has_level:
        return np.zeros(theta_PR.shape[1]), curve_QGR[0], curve_QGR[1:]
    level_QR = np.einsum("gr,qgr->qr", share_GR, curve_QGR)
    curve_QGR -= level_QR[:, None]
    return level_QR[0], curve_QGR[0], curve_QGR[1:]


def sum_of_squares(residual_GR: Array, mass_GR: Array) -> Array:
    """Return the weighted squares [R]."""
    return np.asarray(np.einsum("gr,gr,gr->r", residual_GR, residual_GR, mass_GR))


def influence(jacobian_PGR: Array, mass_GR: Array, curvature_GR: Array | None = None) -> Array:
    """Return d theta / d mean, [P, G, R], of least squares with this centred Jacobian. NaN if theta is not determined.

    For a shape linear in theta, this gives the solution: theta = influence @ mean. A parameter that changes no mean has the
    influence 0.

    Args:
        jacobian_PGR: Derivatives of the means.
        mass_GR: Weights of the means.
        curvature_GR: Weights of the squares that the loss has around the fit, if they differ from its weights.
    """
    root_GR = np.sqrt(mass_GR if curvature_GR is None else curvature_GR)
    scaled_PGR = jacobian_PGR * root_GR
    length_PR = np.sqrt((scaled_PGR**2).sum(1))
    is_dead_PR = (jacobian_PGR == 0).all(1)
    length_PR[is_dead_PR] = 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_RPG = np.moveaxis(scaled_PGR / length_PR[:, None], -1, 0)
    gram_RPP = unit_RPG @ np.swapaxes(unit_RPG, 1, 2)
    at = np.arange(len(jacobian_PGR))
    gram_RPP[:, at, at] += is_dead_PR.T
    # Nearly parallel columns do not determine theta.
    open_R = ~np.isfinite(gram_RPP).all((1, 2))
    gram_RPP[open_R] = np.eye(len(jacobian_PGR))
    open_R |= condition(gram_RPP) > MAX_CONDITION
    gram_RPP[open_R] = np.eye(len(jacobian_PGR))
    with np.errstate(divide="ignore", invalid="ignore"):
        if curvature_GR is not None:
            unit_RPG = np.moveaxis(jacobian_PGR * mass_GR / length_PR[:, None], -1, 0)
        solved_PGR = np.moveaxis(np.linalg.solve(gram_RPP, unit_RPG), 0, -1)
        solved_PGR = solved_PGR / length_PR[:, None]
        solved_PGR = solved_PGR * root_GR if curvature_GR is None else solved_PGR
    return np.where(open_R, np.nan, solved_PGR)


def condition(gram_RPP: Array) -> Array:
    """Return the condition numbers [R], 1 without a parameter."""
    return np.asarray(np.linalg.cond(gram_RPP)) if gram_RPP.shape[1] else np.ones(len(gram_RPP))


def linear_influence(basis_GP: Array, mass_GC: Array) -> Array:
    """Return d theta / d mean, [P, G, C], of a shape that is linear in theta, with a free level."""
    return influence(basis_GP.T[..., None] - (basis_GP.T @ (mass_GC / mass_GC.sum(0)))[:, None], mass_GC)


def linear_solution(basis_GP: Array, mean_GCB: Array, mass_GC: Array) -> Array:
    """Solve for theta [P, C, B] of a shape that is linear in theta."""
    return np.asarray(np.einsum("pgc,gcb->pcb", linear_influence(basis_GP, mass_GC), mean_GCB))


def information(influence_GC: Array, mass_GC: Array) -> Array:
    """Return the information [C] about a parameter: 1 over its variance in units of the noise variance."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (influence_GC**2 / mass_GC).sum(0))
