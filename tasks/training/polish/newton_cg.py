"""Newton's method for one function in a trust region, with conjugate gradients and the ask-and-tell interface of `Lbfgs`.

A Hessian-vector product is a difference of two gradients, so it needs one evaluation and the memory of a few vectors. The
method is for the end of a search, where L-BFGS slows down and its directions cost more than the evaluations.
Shapes: P parameters.
Source: Steihaug, The conjugate gradient method and trust regions in large scale optimization, SIAM J. Numer. Anal. 20 (1983);
forcing terms of Dembo and Steihaug, Truncated-Newton algorithms for large-scale unconstrained optimization, Math. Programming
26 (1983).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

DIFFERENCE_LENGTH = 1e-6
"""Length of the finite difference. Errors from rounding and the third derivative both stay below 1e-5 of a product."""
INITIAL_RADIUS = 0.1
"""Initial radius of the trust region, in parameter units."""
MAX_RADIUS = 1e3
"""Maximum radius of the trust region."""
MIN_RADIUS = 1e-12
"""Radius below which the search has stalled."""
MAX_PRODUCTS = 300
"""Maximum number of Hessian products per Newton step."""
MAX_RESIDUAL_SHARE = 0.1
"""Maximum residual of conjugate gradients as a share of the gradient, far from the end."""
MIN_CURVATURE = 1e-10
"""Curvature at or below which a direction counts as flat."""

Requested = Literal["product", "step"]
_STATE = (
    *("gradient_P", "point_P", "_step_P", "_bent_P", "_residual_P", "_direction_P", "_requested", "_is_at_edge"),
    *("is_stalled", "_radius", "_square", "_num_products", "_residual_tolerance", "_length"),
)


class NewtonCg:
    """Minimises one function of P numbers in float64 from a point with known value and gradient."""

    def __init__(self, start_P: Tensor, value: float, gradient_P: Tensor, *, rounding: float):
        """Start at a point.

        Args:
            start_P: Start.
            value: Value at the start. gradient_P: Gradient at the start. rounding: Relative rounding error of the value. If
                less can be gained, slopes decide.
        """
        self._rounding, self._radius = rounding, INITIAL_RADIUS
        self.iterate_P, self.value, self.gradient_P = start_P.clone(), value, gradient_P
        self.gradient_norm = float(gradient_P.norm())
        self.is_stalled = False
        self._start_step()

    def update(self, value: float, gradient_P: Tensor) -> bool:
        """Process value and gradient at `point_P`, set the next point, and return whether `point_P` became the iterate."""
        if self._requested == "product":
            self._cg_step(gradient_P)
            return False
        ratio = self._reduction_ratio(value, gradient_P)
        if ratio < 0.25:
            self._radius = min(self._radius, float(self._step_P.norm())) / 4
        elif ratio > 0.75 and self._is_at_edge:
            self._radius = min(2 * self._radius, MAX_RADIUS)
        if is_better := ratio > 1e-3:
            self.iterate_P, self.value, self.gradient_P = self.point_P, value, gradient_P
            self.gradient_norm = float(gradient_P.norm())
        self.is_stalled = self._radius < MIN_RADIUS
        self._start_step()
        return is_better

    def _reduction_ratio(self, value: float, gradient_P: Tensor) -> float:
        """Compute the ratio of the actual decrease to the quadratic model's decrease, or -1 if it is not a number."""
        predicted = -float(self.gradient_P.dot(self._step_P) + self._bent_P.dot(self._step_P) / 2)
        actual = self.value - value
        if predicted < 10 * self._rounding * abs(self.value):  # then use the mean of both slopes times the step
            actual = -float((self.gradient_P + gradient_P).dot(self._step_P)) / 2
        ratio = actual / predicted if predicted > 0 else -1.0
        return ratio if math.isfinite(ratio) else -1.0

    def _start_step(self) -> None:
        """Start the conjugate gradients of a Newton step."""
        self._step_P, self._bent_P = torch.zeros_like(self.iterate_P), torch.zeros_like(self.iterate_P)
        self._residual_P, self._direction_P = self.gradient_P.clone(), -self.gradient_P
        self._square, self._num_products, self._is_at_edge = self.gradient_norm**2, 0, False
        relative = self.gradient_norm / abs(self.value) if self.value else math.inf
        self._residual_tolerance = min(MAX_RESIDUAL_SHARE, math.sqrt(relative)) * self.gradient_norm
        self._request_product()

    def _request_product(self) -> None:
        length = DIFFERENCE_LENGTH / max(float(self._direction_P.norm()), 1e-300)
        self._requested: Requested = "product"
        self.point_P, self._length = torch.add(self.iterate_P, self._direction_P, alpha=length), length

    def _cg_step(self, gradient_P: Tensor) -> None:
        """Take one step of conjugate gradients, with the gradient at a small distance along the direction."""
        product_P = (gradient_P - self.gradient_P) / self._length
        curvature, size = float(self._direction_P.dot(product_P)), float(self._direction_P.square().sum())
        self._num_products += 1
        length = self._square / curvature if curvature > MIN_CURVATURE * size else math.inf
        to_edge = self._distance_to_edge(size)
        if not length < to_edge:
            self._move(to_edge, product_P)
            self._is_at_edge = True
            self._request_step()
            return
        self._move(length, product_P)
        self._residual_P = torch.add(self._residual_P, product_P, alpha=length)
        square = float(self._residual_P.square().sum())
        if math.sqrt(square) < self._residual_tolerance or self._num_products == MAX_PRODUCTS:
            self._request_step()
            return
        self._direction_P = torch.add(-self._residual_P, self._direction_P, alpha=square / self._square)
        self._square = square
        self._request_product()

    def _distance_to_edge(self, size: float) -> float:
        """Compute the distance from the current step to the region's edge, in lengths of the direction (squared: `size`)."""
        along = float(self._step_P.dot(self._direction_P))
        remaining = self._radius**2 - float(self._step_P.square().sum())
        return (math.sqrt(max(along**2 + size * remaining, 0.0)) - along) / size

    def _move(self, length: float, product_P: Tensor) -> None:
        self._step_P = torch.add(self._step_P, self._direction_P, alpha=length)
        self._bent_P = torch.add(self._bent_P, product_P, alpha=length)

    def _request_step(self) -> None:
        self._requested, self.point_P = "step", self.iterate_P + self._step_P

    def state(self) -> dict[str, Any]:
        """Return the state for `from_state` except the iterate, as tensors and numbers."""
        return {"newton": [getattr(self, name) for name in _STATE]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device, *, rounding: float) -> NewtonCg:
        """Resume from a `state` with the iterate added."""
        values = [value.to(device) if isinstance(value, Tensor) else value for value in state["newton"]]
        search = cls(state["iterate_P"].to(device), state["ends"][0], values[0], rounding=rounding)
        vars(search).update(zip(_STATE, values, strict=True))
        return search
