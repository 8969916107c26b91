"""Newton's method for one function, asked and told as L-BFGS is: in a trust region, by conjugate gradients.

A product of the Hessian with a vector is a difference of two gradients, so that an evaluation is all that it takes; of memory,
a few vectors. It is for the end of a search, where L-BFGS slows: its directions cost more than the evaluations there.
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
"""Length of the step over which gradients are compared: rounding and the third derivative both stay below 1e-5 of a product."""
FIRST_RADIUS, LARGEST_RADIUS, SMALLEST_RADIUS = 0.1, 1e3, 1e-12
"""Of the trust region, in the parameters' own units; below the smallest nothing is to be gained."""
MAX_PRODUCTS = 300
"""Of one Newton step."""
MAX_RESIDUAL_SHARE = 0.1
"""Share of the gradient that conjugate gradients may leave, far from the end."""
MIN_CURVATURE = 1e-10
"""Curvature that counts as none."""

Requested = Literal["product", "step"]


class NewtonCg:
    """Minimises one function of P numbers in float64 from a point whose value and gradient are known."""

    def __init__(self, start_P: Tensor, value: float, gradient_P: Tensor, *, rounding: float):
        """Start at a point.

        rounding: what share of the value rounding makes of it; where less is to be gained, slopes decide.
        """
        self._rounding, self._radius = rounding, FIRST_RADIUS
        self.iterate_P, self.value, self.gradient_P = start_P.clone(), value, gradient_P
        self.gradient_norm = float(gradient_P.norm())
        self.is_stalled = False
        self._start_step()

    def update(self, value: float, gradient_P: Tensor) -> bool:
        """Take value and gradient at `point_P`, name the next point, and return whether this one became the iterate."""
        if self._requested == "product":
            self._cg_step(gradient_P)
            return False
        fallen = self._reduction_ratio(value, gradient_P)
        if fallen < 0.25:
            self._radius = min(self._radius, float(self._step_P.norm())) / 4
        elif fallen > 0.75 and self._is_at_edge:
            self._radius = min(2 * self._radius, LARGEST_RADIUS)
        if is_better := fallen > 1e-3:
            self.iterate_P, self.value, self.gradient_P = self.point_P, value, gradient_P
            self.gradient_norm = float(gradient_P.norm())
        self.is_stalled = self._radius < SMALLEST_RADIUS
        self._start_step()
        return is_better

    def _reduction_ratio(self, value: float, gradient_P: Tensor) -> float:
        """Return which share of the fall that the quadratic model promised there was; -1 where there is no number."""
        promised = -float(self.gradient_P.dot(self._step_P) + self._bent_P.dot(self._step_P) / 2)
        fallen = self.value - value
        if promised < 10 * self._rounding * abs(self.value):  # both slopes say it then: the mean of them times the way
            fallen = -float((self.gradient_P + gradient_P).dot(self._step_P)) / 2
        share = fallen / promised if promised > 0 else -1.0
        return share if math.isfinite(share) else -1.0

    def _start_step(self) -> None:
        """Begin the conjugate gradients of a Newton step."""
        self._step_P, self._bent_P = torch.zeros_like(self.iterate_P), torch.zeros_like(self.iterate_P)
        self._residual_P, self._direction_P = self.gradient_P.clone(), -self.gradient_P
        self._square, self._num_products, self._is_at_edge = self.gradient_norm**2, 0, False
        share = (
            min(MAX_RESIDUAL_SHARE, math.sqrt(self.gradient_norm / abs(self.value)))
            if self.value
            else MAX_RESIDUAL_SHARE
        )
        self._residual_tolerance = share * self.gradient_norm
        self._request_product()

    def _request_product(self) -> None:
        length = DIFFERENCE_LENGTH / max(float(self._direction_P.norm()), 1e-300)
        self._requested: Requested = "product"
        self.point_P, self._length = torch.add(self.iterate_P, self._direction_P, alpha=length), length

    def _cg_step(self, gradient_P: Tensor) -> None:
        """Go one step of conjugate gradients with the gradient a little along the direction."""
        product_P = (gradient_P - self.gradient_P) / self._length
        bend, size = float(self._direction_P.dot(product_P)), float(self._direction_P.square().sum())
        self._num_products += 1
        length = self._square / bend if bend > MIN_CURVATURE * size else math.inf
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
        """Return how many directions it is from the step so far to the region's edge; size: the direction's square."""
        along = float(self._step_P.dot(self._direction_P))
        left = self._radius**2 - float(self._step_P.square().sum())
        return (math.sqrt(max(along**2 + size * left, 0.0)) - along) / size

    def _move(self, length: float, product_P: Tensor) -> None:
        self._step_P = torch.add(self._step_P, self._direction_P, alpha=length)
        self._bent_P = torch.add(self._bent_P, product_P, alpha=length)

    def _request_step(self) -> None:
        self._requested, self.point_P = "step", self.iterate_P + self._step_P

    def state(self) -> dict[str, Any]:
        """Return all that it needs to go on from its iterate, as tensors and numbers."""
        return {
            "newton": [
                self.point_P, self.gradient_P, self._step_P, self._bent_P, self._residual_P, self._direction_P,
            ],
            "numbers": [self._radius, self._square, self._num_products, self._residual_tolerance, self._length],
            "asked": self._requested,
            "flags": [self._is_at_edge, self.is_stalled],
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device, *, rounding: float) -> NewtonCg:
        """Go on from what `state` gave."""
        tensors = [tensor.to(device) for tensor in state["newton"]]
        value, _ = state["ends"]
        search = cls(state["iterate_P"].to(device), value, tensors[1], rounding=rounding)
        search.point_P, _, search._step_P, search._bent_P, search._residual_P, search._direction_P = tensors
        search._radius, search._square, search._num_products, search._residual_tolerance, search._length = state[
            "numbers"
        ]
        search._requested = state["asked"]
        search._is_at_edge, search.is_stalled = state["flags"]
        return search
