"""Closed forms and checks of the unconstrained features models. Plain Python: importable by every command.

The objectives, N = K n samples, f = W H: (UFM) loss(f) + lambda_W/(2K) ||W||^2 + lambda/(2N) ||H||^2; (MUFM) with
||H - X||^2 in place of ||H||^2; with L blocks lambda/(2N) sum_l ||H_l - H_{l-1}||^2, H_0 = X. The squared loss is
(1/2N) ||f - Y||^2.

Source: P3 Progressive Feedforward Collapse of ResNet Training, (12), (13) and Theorem 3, whose lambda is lambda / L (the
paper drops the L).
"""

from __future__ import annotations

import math


def ufm_optimum(loss: str, *, num_classes: int, weight_decay: float, weight_decay_features: float) -> float:
    """Return the lowest objective of the unconstrained features model, for d >= K and balanced classes.

    Both regularisers together cost sqrt(lambda_W lambda / n) / K times the nuclear norm of W H, so with
    c = sqrt(lambda_W lambda): mse, W H = (1 - c) Y and c - c^2/2, or 1/2 at zero if c >= 1; ce, W H = a (I - 1 1^T / K)
    on the classes with exp(-a) = c / (K - c (K-1)), or log K at zero if c >= 1.
    """
    c = math.sqrt(weight_decay * weight_decay_features)
    if loss == "mse":
        return c - c**2 / 2 if c < 1 else 0.5
    if c >= 1:
        return math.log(num_classes)
    others = num_classes - 1
    if c == 0:
        return 0.0
    tail = c / (num_classes - c * others)
    return math.log1p(others * tail) - c * others / num_classes * math.log(tail)


def equivalent_proximity(proximity: float, num_blocks: int) -> float:
    """Return the lambda at which one block (13) has the optimum of L blocks (12): lambda / L (Theorem 3, corrected).

    For fixed first and last features, the blocks between them split the distance evenly. L steps of 1/L of the distance
    cost 1/L of its square.
    """
    return proximity / num_blocks
