"""What a fit model is: one object that holds all that is said and done about its curve.

Shapes: C curves on one design, N points, G groups (the distinct x, rising), R rows, P shape parameters (all but the
prefactor; the first is the exponent; at most two), S starting points. Curves and rows come last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.least_squares import Array, Shape
from depthrate.tasks.fits.points import Points

Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_CONDITION_NUMBER = 1e4
"""A model linear in two parameters is left out where their columns are this near to parallel (condition number):
log x and log log x at depths 2 to 21 give 92, at 12 to 31 1,900, at 102 to 121 150,000, and exponents in the hundreds."""


@dataclass(frozen=True)
class FitParameter:
    """A parameter of a model besides the prefactor c and the exponent a."""

    name: str
    """As the fits table and `depthrate fit --json` call it."""
    symbol: str
    """As the formula and the report's table call it."""


class Model(ABC):
    """log y = log c + shape(x; a, at most one more). A new model is one such object, and a line in the table MODELS."""

    name: str
    """As in the fits table."""
    words: str
    """As in a sentence: `power law with floor`."""
    formula: str
    """Of y, with ^{...} for an exponent of more than one sign: `c x^{-a} + floor`."""
    parameters: tuple[FitParameter, ...] = ()
    """Those besides c and a."""
    has_theory: bool = False
    """Whether a theorem speaks of its exponent, so that a = 1/2 and a = 1 are tested."""
    values_are_told: bool = False
    """Whether a sentence that prefers this model to the power law names its exponent and its other parameters."""

    @property
    def num_parameters(self) -> int:
        """c, a and the others."""
        return 2 + len(self.parameters)

    @property
    def min_distinct_x(self) -> int:
        """Below so many distinct x the model is left out."""
        return self.num_parameters + 1

    @abstractmethod
    def family(self, points: Points) -> CurveFamily | None:
        """Return its curves on these points; null where they have an x it is not defined at, or can't tell it."""

    @abstractmethod
    def value(self, x_N: Array, prefactor: float, exponent: float, others: Mapping[str, float]) -> Array:
        """Return y at x, of x's shape; others: the parameters by name."""

    @abstractmethod
    def log_x_at(self, theta_PR: Array, level_R: Array, ref_R: Array, log_target: float) -> Array:
        """Return log x [R] where each row's curve meets the target, infinite where it never does at growing x.

        numpy's warnings are off.
        """

    def others(self, theta_PR: Array, level_R: Array, ref_R: Array) -> dict[str, Array]:
        """Return its other parameters [R] by name; numpy's warnings are off."""
        return {parameter.name: theta_R for parameter, theta_R in zip(self.parameters, theta_PR[1:], strict=True)}


@dataclass(frozen=True)
class CurveFamily:
    """A model's curves on one design, and where least squares looks for the best of them."""

    model: Model
    shape: Shape
    basis_GP: Array | None
    """Of a shape linear in theta; null otherwise."""
    starts_SPC: Array
    lower_PC: Array
    upper_PC: Array
    ref_C: Array
    """log x that the shape of a curve refers to."""

    def select(self, curves: slice) -> CurveFamily:
        """Return it for some of the curves."""
        starts_SPC, lower_PC, upper_PC, ref_C = (
            part[..., curves] for part in (self.starts_SPC, self.lower_PC, self.upper_PC, self.ref_C)
        )
        return CurveFamily(self.model, self.shape, self.basis_GP, starts_SPC, lower_PC, upper_PC, ref_C)


class LinearModel(Model):
    """A model whose shape is linear in its parameters: solved in one step."""

    @abstractmethod
    def basis(self, x_G: Array) -> Array | None:
        """Return the columns [G, P] that the parameters multiply; null where x has a value without them."""

    def family(self, points: Points) -> CurveFamily | None:
        """Return its curves on these points; null where its columns are parallel or not defined."""
        basis_GP = self.basis(points.x_G)
        if basis_GP is None or (basis_GP.shape[1] > 1 and _parallel(basis_GP)):
            return None

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            shape_GR = basis_GP @ theta_PR
            return np.stack(
                [shape_GR, *(np.broadcast_to(column_G[:, None], shape_GR.shape) for column_G in basis_GP.T)]
            )

        infinite_PC = np.full((basis_GP.shape[1], points.mean_GC.shape[1]), np.inf)
        ref_C = np.zeros(points.mean_GC.shape[1])
        return CurveFamily(self, shape, basis_GP, np.zeros_like(infinite_PC)[None], -infinite_PC, infinite_PC, ref_C)


def _parallel(basis_GP: Array) -> bool:
    centred_GP = basis_GP - basis_GP.mean(0)
    unit_GP = centred_GP / np.sqrt((centred_GP**2).sum(0))
    return bool(np.linalg.cond(unit_GP.T @ unit_GP) > MAX_CONDITION_NUMBER)


def power_slope(points: Points) -> Array:
    """Return the power law's exponent, [C]."""
    share_GC = points.mass_GC / points.mass_GC.sum(0)
    log_x_G = np.log(points.x_G)
    centred_GC = log_x_G[:, None] - log_x_G @ share_GC
    return np.asarray(-(share_GC * centred_GC * points.mean_GC).sum(0) / (share_GC * centred_GC**2).sum(0))


def never_unless(meets_R: Mask, log_x_R: Array) -> Array:
    """Return log x where a curve meets its target, infinity elsewhere."""
    return np.where(meets_R, log_x_R, np.inf)


def last_above(above: Callable[[Array], Mask], low_R: Array, high_R: Array) -> Array:
    """Return by bisection where `above` turns from true at low [R] to false at high [R]; infinity where it does not."""
    meets_R = above(low_R) & ~above(high_R)
    for _ in range(80):
        middle_R = (low_R + high_R) / 2
        over_R = above(middle_R)
        low_R, high_R = np.where(over_R, middle_R, low_R), np.where(over_R, high_R, middle_R)
    return never_unless(meets_R, low_R)
