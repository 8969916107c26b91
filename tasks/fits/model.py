"""Base classes of the fit models: one object per model, with its names, formula and computations.

Shapes: K variables, C curves on one design, N points, G groups (the distinct x, rising), R rows, P shape parameters (all but
the prefactor of a form with one, exponents first), S starting points, L linear functions of the parameters. Curves and rows
come last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.least_squares import MAX_CONDITION, Array, Shape, condition
from depthrate.tasks.fits.points import Points

Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_CONDITION_NUMBER = 1e4
"""Maximum condition number of the two columns of a linear model in one variable. Beyond it they are nearly parallel and the
model is omitted. log x and log log x give 92 at depths 2 to 21, 1,900 at 12 to 31, and 150,000 at 102 to 121, where exponents
are in the hundreds."""


@dataclass(frozen=True)
class FitParameter:
    """Parameter of a model in addition to the prefactor c and the exponent a."""

    name: str
    """Name in the fits table and in `depthrate fit --json`."""
    symbol: str
    """Symbol in the formula and in the report's table."""


class Model(ABC):
    """Model log y = log c + shape(x), with an exponent for each variable and at most one more parameter.

    To add a model, add an instance to MODELS.
    """

    name: str
    """Name in the fits table."""
    formula: str
    """Formula of y, with ^{...} for an exponent of more than one character: `c x^{-a} + floor`."""
    parameters: tuple[FitParameter, ...] = ()
    """Parameters in addition to c and a."""
    has_theory: bool = False
    """True if a theorem predicts the exponent, so that a = 1/2 and a = 1 are tested."""
    values_are_told: bool = False
    """True if a sentence that prefers this model to the power law states its exponent and other parameters."""
    max_variables: int = 1
    """Maximum number of variables."""
    needs_x_above_one: bool = False
    """True if the model has a power of log x, of the first variable."""
    fixed: Mapping[str, float] = MappingProxyType({})
    """Parameters with a known value, by name."""
    has_exponents: bool = True
    """False if all exponents are 1."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters of one variable, including c and a, without those that are fixed."""
        return 2 + len(self.parameters) - len(self.fixed)

    def num_parameters_of(self, num_variables: int) -> int:
        """Return the number of parameters of several variables."""
        return self.num_parameters + num_variables - 1

    @property
    def min_distinct_x(self) -> int:
        """Minimum number of distinct x for fitting the model."""
        return self.num_parameters + 1

    @abstractmethod
    def family(self, points: Points) -> CurveFamily | None:
        """Build the curves on these points, or return None if an x is outside the domain or the model is not identifiable."""

    @abstractmethod
    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        """Return y at x, [K, ...]. `coefficients`: c, or one c for each variable. `others`: the other parameters by name."""

    @abstractmethod
    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        """Return log x [R] where each row's curve meets the target, infinite where it never does at growing x.

        The caller disables numpy warnings.
        """

    def others(self, theta_PR: Array, ref_R: Array) -> dict[str, Array]:
        """Return the other parameters [R] by name. The caller disables numpy warnings."""
        free = [parameter.name for parameter in self.parameters if parameter.name not in self.fixed]
        fixed = {name: np.full(theta_PR.shape[1], value) for name, value in self.fixed.items()}
        return fixed | dict(zip(free, theta_PR[len(theta_PR) - len(free) :], strict=True))


@dataclass(frozen=True)
class CurveFamily:
    """Curves of a model on one design, with the starting points and bounds of least squares."""

    model: Model
    shape: Shape
    basis_GP: Array | None
    """Columns of a shape that is linear in theta, or None for other shapes."""
    starts_SPC: Array
    lower_PC: Array
    upper_PC: Array
    ref_C: Array
    """Logarithm of the unit of y of a sum. 0 for other shapes."""
    offset_G: Array | float = 0.0
    """What a linear shape adds to its columns."""
    has_level: bool = True
    """Whether the level is free. Otherwise the shape has the coefficients among its parameters."""
    log_c_LP: Array | None = None
    """Linear functions of theta that give the logarithms of the coefficients of a sum, less `ref_C`."""
    is_level_last: bool = False
    """Whether the last parameter is the level."""

    def on_y(self) -> CurveFamily:
        """Return the curves of y instead of log y. The level must be a parameter."""

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            curve_QGR = self.shape(theta_PR, ref_R)
            with np.errstate(over="ignore", invalid="ignore"):
                np.exp(curve_QGR[0], out=curve_QGR[0])
                curve_QGR[1:] *= curve_QGR[0]
            return curve_QGR

        return replace(self, shape=shape)

    @property
    def is_sum(self) -> bool:
        """Whether theta is a_1 ... a_K, log c_1 ... log c_K, and the floor in units of `exp(ref_C)`."""
        return self.log_c_LP is not None

    def log_coefficients(self, theta_PR: Array, level_R: Array, ref_R: Array) -> Array:
        """Return the logarithms of the coefficients, [L, R]."""
        return level_R[None] if self.log_c_LP is None else self.log_c_LP @ theta_PR + ref_R

    @property
    def offset_G11(self) -> Array:
        """`offset_G`, for curves and resamples."""
        return np.asarray(self.offset_G, dtype=np.float64).reshape(-1, 1, 1)

    def select(self, curves: slice | np.ndarray) -> CurveFamily:
        """Select some of the curves, by a slice or by their numbers."""
        names = ("starts_SPC", "lower_PC", "upper_PC", "ref_C")
        return replace(self, **{name: getattr(self, name)[..., curves] for name in names})

    def with_level_last(self, theta_PC: Array, level_C: Array) -> CurveFamily:
        """Return the curves with the level as a further parameter, as other losses than squares of log y need it.

        Args:
            theta_PC: Start in front of the curves' own.
            level_C: Level of the starts.
        """
        if not self.has_level:
            return replace(self, starts_SPC=np.concatenate([theta_PC[None], self.starts_SPC]))

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            curve_QGR = self.shape(theta_PR[:-1], ref_R)
            curve_QGR[0] += theta_PR[-1]
            return np.concatenate([curve_QGR, np.ones_like(curve_QGR[:1])])

        starts_SPC = theta_PC[None] if self.basis_GP is not None else np.concatenate([theta_PC[None], self.starts_SPC])
        level_S1C = np.tile(level_C, (len(starts_SPC), 1, 1))
        infinite_1C = np.full((1, len(level_C)), np.inf)
        return replace(
            self,
            shape=shape,
            basis_GP=None,
            starts_SPC=np.concatenate([starts_SPC, level_S1C], axis=1),
            lower_PC=np.concatenate([self.lower_PC, -infinite_1C]),
            upper_PC=np.concatenate([self.upper_PC, infinite_1C]),
            has_level=False,
            is_level_last=True,
        )


class LinearModel(Model):
    """Model whose shape is linear in its parameters, so that it is solved in one step."""

    @abstractmethod
    def basis(self, x_KG: Array) -> Array | None:
        """Return the columns [G, P] multiplied by the parameters, or None if they are undefined at an x."""

    def offset(self, x_KG: Array) -> Array:
        """Return the part [G] of log y that has no parameter."""
        return np.zeros(x_KG.shape[1])

    def family(self, points: Points) -> CurveFamily | None:
        """Build the curves on these points, or return None if the columns are nearly parallel or undefined."""
        basis_GP = self.basis(points.x_KG)
        if basis_GP is None or (basis_GP.shape[1] > 1 and _parallel(basis_GP, len(points.x_KG))):
            return None
        offset_G = self.offset(points.x_KG)

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            shape_GR = basis_GP @ theta_PR + offset_G[:, None]
            return np.stack(
                [shape_GR, *(np.broadcast_to(column_G[:, None], shape_GR.shape) for column_G in basis_GP.T)]
            )

        infinite_PC = np.full((basis_GP.shape[1], points.mean_GC.shape[1]), np.inf)
        ref_C = np.zeros(points.mean_GC.shape[1])
        starts_SPC = np.zeros_like(infinite_PC)[None]
        return CurveFamily(self, shape, basis_GP, starts_SPC, -infinite_PC, infinite_PC, ref_C, offset_G)


class BoundedModel(Model):
    """Model fitted within bounds, from several starting points."""

    @abstractmethod
    def curves(self, x_G: Array, log_x_G: Array, slope_C: Array) -> tuple[Shape, Array, Array, Array]:
        """Return the shape, its starting points [S, P, C], and and bounds [P, C], from the power law's exponents."""

    def family(self, points: Points) -> CurveFamily:
        log_x_G, slope_C = np.log(points.x_G), power_slope(points)
        shape, starts_SPC, lower_PC, upper_PC = self.curves(points.x_G, log_x_G, slope_C)
        return CurveFamily(self, shape, None, starts_SPC, lower_PC, upper_PC, np.zeros_like(slope_C))


def _parallel(basis_GP: Array, num_variables: int) -> bool:
    centred_GP = basis_GP - basis_GP.mean(0)
    unit_GP = centred_GP / np.sqrt((centred_GP**2).sum(0))
    limit = MAX_CONDITION_NUMBER if num_variables == 1 else MAX_CONDITION
    return bool(condition((unit_GP.T @ unit_GP)[None])[0] > limit)


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
    """Bisect between low [R] and high [R] for the point where `above` becomes false. Infinity if it does not."""
    meets_R = above(low_R) & ~above(high_R)
    for _ in range(80):
        middle_R = (low_R + high_R) / 2
        over_R = above(middle_R)
        low_R, high_R = np.where(over_R, middle_R, low_R), np.where(over_R, high_R, middle_R)
    return never_unless(meets_R, low_R)


def exp(value: Array) -> Array:
    """Return e^value, infinite or zero outside the range of a float."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(value))


def log_x_at(family: CurveFamily, theta_PR: Array, log_c_R: Array, ref_R: Array, target: float) -> Array:
    """Return log x [R] where each row's curve meets the target, infinite where it never does."""
    with np.errstate(all="ignore"):
        return family.model.log_x_at(theta_PR, log_c_R, ref_R, float(np.log(target)))
