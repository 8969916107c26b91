"""How fast a core of this machine is, over the one on which tasks' reckonings of time were measured."""

from __future__ import annotations

import functools
import math
import time

import numpy as np

MULTIPLY_ADDS_PER_S = 4.5e10
"""Of that core, in the product below."""
SPEEDS = (0.25, 2.0)
"""Between which it is believed: some libraries multiply by units of the processor that training does not use."""


@functools.cache
def core_speed() -> float:
    """Return how fast a core of this machine is, over the one on which times were measured: by a small product of matrices."""
    a = np.ones((64, 64), np.float32)  # small, so that one thread does it
    product, shortest_s = np.empty_like(a), math.inf
    for _ in range(30):
        began = time.perf_counter()
        for _ in range(20):
            np.matmul(a, a, out=product)
        shortest_s = min(shortest_s, time.perf_counter() - began)
    least, most = SPEEDS
    return max(least, min(most, 20 * a.size * len(a) / shortest_s / MULTIPLY_ADDS_PER_S))
