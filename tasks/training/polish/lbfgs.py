"""L-BFGS for one function with an ask-and-tell interface: evaluate `point_P`, then call `update` with value and gradient.

The points of many searches can thus be evaluated in one fused pass, while each search proceeds independently.
Shapes: P parameters, M stored pairs.
Source: Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices, Math. Programming 63 (1994), (3.1); line search
of Lewis and Overton, Nonsmooth optimization via quasi-Newton methods, Math. Programming 141 (2013), which needs no smoothness.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

DECREASE = 1e-4
"""Weak Wolfe condition: minimum decrease as a share of the decrease predicted by the slope."""
CURVATURE = 0.9
"""Weak Wolfe condition: maximum remaining share of the slope."""
MAX_TRIES = 40
"""Maximum number of points per line search."""
_STATE = (
    *("point_P", "gradient_P", "_pairs_MP", "_direction_P", "_order", "is_stalled"),
    *("_slope", "_step", "_low", "_high", "_tries"),
)
_PRODUCTS = ("_sy_MM", "_yy_MM")


class Lbfgs:
    """Minimises one function of P numbers in float64. A step reads the stored pairs twice."""

    def __init__(self, start_P: Tensor, memory: int, *, rounding: float = 0.0):
        """Start at a point.

        Args:
            start_P: Start.
            memory: Number M of stored pairs.
            rounding: Relative rounding error of the value. If two values differ by less, slopes decide (approximate Wolfe
                conditions of Hager and Zhang, A new conjugate gradient method, SIAM J. Optim. 16 (2005)). With 0, slopes never
                decide.
        """
        self._rounding = rounding
        self.iterate_P = start_P.clone()
        self.point_P = self.iterate_P
        self.value, self.gradient_norm = math.inf, math.inf
        self.gradient_P = torch.zeros_like(self.iterate_P)
        self.is_stalled = False
        self._direction_P: Tensor | None = None
        self._pairs_MP = start_P.new_zeros(2 * memory, start_P.numel())
        self._order: list[int] = []
        self._sy_MM, self._yy_MM = np.zeros((memory, memory)), np.zeros((memory, memory))
        self._products_M = np.zeros(2 * memory)
        self._slope, self._step, self._low, self._high, self._tries = 0.0, 1.0, 0.0, math.inf, 0

    def update(self, value: float, gradient_P: Tensor) -> bool:
        """Process value and gradient at `point_P`, and set `point_P` to the next point.

        The gradient is stored. It must have its own memory, because the rounding of products may depend on alignment.

        Returns:
            Whether the evaluated point became the iterate.
        """
        if self._direction_P is None:
            self._accept(value, gradient_P, None)
            return True
        if not self._has_fallen(value, gradient_P):  # also for NaN
            self._high = self._step
            self._step = self._shorter_step(value)
        elif float(gradient_P.dot(self._direction_P)) < CURVATURE * self._slope:
            self._low = self._step
            self._step = 2 * self._step if math.isinf(self._high) else (self._low + self._high) / 2
        else:
            self._accept(value, gradient_P, self._step * self._direction_P)
            return True
        self._tries += 1
        if self._tries > MAX_TRIES:
            self._give_up()
        else:
            self._place_point()
        return False

    def _has_fallen(self, value: float, gradient_P: Tensor) -> bool:
        """Return whether the value decreased enough for the slope, judged by the slopes if rounding hides the difference."""
        assert self._direction_P is not None
        if value <= self.value + DECREASE * self._step * self._slope:
            return True
        if not (self._rounding and value <= self.value + self._rounding * abs(self.value)):
            return False
        return float(gradient_P.dot(self._direction_P)) <= (2 * DECREASE - 1) * self._slope

    def forget_value(self) -> None:
        """Request the iterate again because the function has changed, and retain the curvature pairs."""
        self.point_P, self._direction_P, self.is_stalled = self.iterate_P, None, False
        self.value = math.inf

    def _shorter_step(self, value: float) -> float:
        """Choose a step shorter than one that was too long: the parabola's minimum at first, later the midpoint."""
        middle = (self._low + self._high) / 2
        if self._low > 0 or not math.isfinite(value):
            return middle
        curvature = value - self.value - self._slope * self._high
        minimum = -self._slope * self._high**2 / (2 * curvature) if curvature > 0 else middle
        return min(max(minimum, 0.1 * self._high), middle)

    def _accept(self, value: float, gradient_P: Tensor, moved_P: Tensor | None) -> None:
        change_P = gradient_P - self.gradient_P
        self.iterate_P, self.value = self.point_P, value
        self.gradient_P = gradient_P
        self.gradient_norm = float(self.gradient_P.norm())
        if moved_P is None or not self._remember(moved_P, change_P):
            self._products_M = torch.mv(self._pairs_MP, self.gradient_P).numpy(force=True)
        self._choose_direction()

    def _remember(self, moved_P: Tensor, change_P: Tensor) -> bool:
        """Store a pair unless the curvature is negative, and update the products for the next direction."""
        if float(moved_P.dot(change_P)) <= 1e-14 * float(moved_P.norm()) * float(change_P.norm()):
            return False
        memory = len(self._sy_MM)
        slot = self._order.pop(0) if len(self._order) == memory else len(self._order)
        self._order.append(slot)
        self._pairs_MP[slot], self._pairs_MP[memory + slot] = moved_P, change_P
        both_2P = torch.stack([change_P, self.gradient_P])  # reads the stored pairs only once for both
        products, self._products_M = torch.mm(both_2P, self._pairs_MP.T).numpy(force=True)
        self._sy_MM[:, slot] = products[:memory]
        self._yy_MM[:, slot] = self._yy_MM[slot, :] = products[memory:]
        return True

    def _choose_direction(self) -> None:
        """Choose a new direction from the iterate, and the first point along it."""
        direction_P = self._quasi_newton()
        slope = float(direction_P.dot(self.gradient_P))
        if not slope < 0:
            self._order.clear()
            direction_P = -self.gradient_P
            slope = -(self.gradient_norm**2)
        self._direction_P, self._slope = direction_P, slope
        self._low, self._high, self._tries = 0.0, math.inf, 0
        self._step = 1.0 if self._order else min(1.0, 0.1 / max(self.gradient_norm, 1e-300))
        self.is_stalled = slope == 0
        self._place_point()

    def _quasi_newton(self) -> Tensor:
        """Compute -H g, H the inverse Hessian of the stored pairs in its compact form."""
        if not self._order:
            return -self.gradient_P
        memory, order = len(self._sy_MM), np.array(self._order)
        sy, yy = self._sy_MM[np.ix_(order, order)], self._yy_MM[np.ix_(order, order)]
        sg, yg = self._products_M[order], self._products_M[memory + order]
        scale = sy[-1, -1] / yy[-1, -1]
        upper = np.triu(sy)
        inner = np.linalg.solve(upper, sg)
        outer = np.linalg.solve(upper.T, (np.diag(np.diag(sy)) + scale * yy) @ inner - scale * yg)
        weights = np.zeros(2 * memory)
        weights[order], weights[memory + order] = -outer, scale * inner
        weights_M = torch.from_numpy(weights).to(self._pairs_MP)
        return torch.addmv(self.gradient_P, self._pairs_MP.T, weights_M, beta=-scale)

    def _place_point(self) -> None:
        assert self._direction_P is not None
        self.point_P = torch.add(self.iterate_P, self._direction_P, alpha=self._step)

    def _give_up(self) -> None:
        """Restart with steepest descent. If that was already the direction, stop, because only rounding errors are left."""
        if self._order:
            self._order.clear()
            self._choose_direction()
        else:
            self.is_stalled = True

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state` except the iterate, as tensors and numbers."""
        return {name: getattr(self, name) for name in _STATE} | {
            name: torch.from_numpy(getattr(self, name).copy()) for name in _PRODUCTS
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state` with the iterate added."""
        device = self.iterate_P.device
        self.iterate_P = state["iterate_P"].to(device)
        self.value, self.gradient_norm = state["ends"]
        for name in _STATE if _STATE[0] in state else ():
            value = state[name]
            setattr(self, name, value.to(device) if isinstance(value, Tensor) else copy.copy(value))
        for name in _PRODUCTS if _STATE[0] in state else ():
            setattr(self, name, state[name].numpy().copy())
