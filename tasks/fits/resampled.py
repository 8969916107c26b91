"""Bootstrap intervals of the exponent and of the x that meets a target, from a model fitted to resampled means.

Shapes: C curves, G groups (the distinct x, rising), B resamples, P shape parameters, R rows. Curves come last, resamples
after them.
"""

from __future__ import annotations

import numpy as np

from depthrate.tasks.fits.intervals import Resampling, acceleration, bca_interval, effective_freedom
from depthrate.tasks.fits.least_squares import Array, influence, residuals
from depthrate.tasks.fits.levenberg_marquardt import minimise
from depthrate.tasks.fits.model import CurveFamily
from depthrate.tasks.fits.points import Points
from depthrate.tasks.fits.threads import BLOCK_ROWS, in_threads, parts_of

TOLERANCE = 1e-11
"""Convergence tolerance: the RMS change of the curve in log space by a row's step."""
TOLERANCE_RESAMPLED = 5e-4
"""Tolerance for resamples, relative to their spread: twenty times finer than the resolution of 1000 resamples."""
NUM_FOR_SPREAD = 100
"""Number of resamples from which the spread is estimated."""


def exp(value: Array) -> Array:
    """Return e^value, infinite or zero outside the range of a float."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(value))


def log_x_at(family: CurveFamily, theta_PR: Array, level_R: Array, ref_R: Array, target: float) -> Array:
    """Return log x [R] where each row\'s curve meets the target, infinite where it never does."""
    with np.errstate(all="ignore"):
        return family.model.log_x_at(theta_PR, level_R, ref_R, float(np.log(target)))


def linear_solution(basis_GP: Array, mean_GCB: Array, mass_GC: Array) -> Array:
    """Solve for theta [P, C, B] of a shape that is linear in theta."""
    centred_PGC = basis_GP.T[..., None] - (basis_GP.T @ (mass_GC / mass_GC.sum(0)))[:, None]
    return np.asarray(np.einsum("pgc,gcb->pcb", influence(centred_PGC, mass_GC), mean_GCB))


def resampled(
    family: CurveFamily,
    points: Points,
    resampling: Resampling,
    theta_PC: Array,
    level_C: Array,
    influence_GC: Array,
    target: float | None,
) -> dict[str, Array]:
    """Compute the bootstrap intervals by column name."""
    num_curves, num_resamples = len(level_C), resampling.shares[0].shape[1]
    acceleration_C, freedom_C = acceleration(influence_GC, points), effective_freedom(influence_GC, points)
    names = ["ci_low", "ci_high"] + (["x_at_low", "x_at_high"] if target is not None else [])
    columns = {name: np.empty(num_curves) for name in names}

    def work(part: slice) -> None:
        family_here, points_here, estimate_PC = family.select(part), points.select(part), theta_PC[:, part]
        mean_GCB = resampling.means(points_here)
        theta_PCB = refit(family_here, points_here, estimate_PC, mean_GCB)
        ends = bca_interval(estimate_PC[0], theta_PCB[0], acceleration_C[part], freedom_C[part])
        for name, end_C in zip(("ci_low", "ci_high"), ends, strict=True):  # the model has no curve outside the box
            columns[name][part] = np.clip(end_C, family_here.lower_PC[0], family_here.upper_PC[0])
        if target is not None:
            log_x_C = log_x_at(family_here, estimate_PC, level_C[part], family_here.ref_C, target)
            log_x_CB = _resampled_x_at(family_here, points_here, theta_PCB, mean_GCB, target)
            low_C, high_C = bca_interval(log_x_C, log_x_CB, np.zeros_like(log_x_C), freedom_C[part])
            columns["x_at_low"][part], columns["x_at_high"][part] = exp(low_C), exp(high_C)

    in_threads(work, parts_of(num_curves, at_most=BLOCK_ROWS // num_resamples))
    return columns


def refit(family: CurveFamily, points: Points, theta_PC: Array, mean_GCB: Array) -> Array:
    """Fit the shape parameters [P, C, B] to resampled means."""
    if family.basis_GP is not None:
        return linear_solution(family.basis_GP, mean_GCB, points.mass_GC)
    spread_C = (mean_GCB[..., :NUM_FOR_SPREAD] - points.mean_GC[..., None]).std((0, 2))
    tolerance_C = np.maximum(TOLERANCE, TOLERANCE_RESAMPLED * spread_C)
    box = (family.lower_PC, family.upper_PC)
    return minimise(family.shape, theta_PC, family.ref_C, mean_GCB, points.mass_GC, *box, tolerance_C)


def _resampled_x_at(family: CurveFamily, points: Points, theta_PCB: Array, mean_GCB: Array, target: float) -> Array:
    num_groups, num_curves, num_resamples = mean_GCB.shape
    curve_R = np.repeat(np.arange(num_curves), num_resamples)
    theta_PR, mass_GR = theta_PCB.reshape(-1, len(curve_R)), points.mass_GC[:, curve_R]
    mean_GR, ref_R = mean_GCB.reshape(num_groups, -1), family.ref_C[curve_R]
    level_R, _, _ = residuals(family.shape, theta_PR, ref_R, mean_GR, mass_GR / mass_GR.sum(0))
    return log_x_at(family, theta_PR, level_R, ref_R, target).reshape(num_curves, num_resamples)
