"""Measure the speed of a local core relative to the one on which tasks' time estimates were calibrated."""

from __future__ import annotations

import functools
import math
import time

import numpy as np

MULTIPLY_ADDS_PER_S = 4.5e10
"""Multiply-adds per second of the calibration core in the matrix product below."""
MIN_SPEED = 0.25
"""Lower bound of the relative speed."""
MAX_SPEED = 2.0
"""Upper bound of the relative speed: some libraries multiply with processor units that training does not use."""


@functools.cache
def core_speed() -> float:
    """Return the speed of a local core relative to the calibration core, measured with a small matrix product."""
    a = np.ones((64, 64), np.float32)  # small enough to run in one thread
    product, shortest_s = np.empty_like(a), math.inf
    for _ in range(30):
        started = time.perf_counter()
        for _ in range(20):
            np.matmul(a, a, out=product)
        shortest_s = min(shortest_s, time.perf_counter() - started)
    return max(MIN_SPEED, min(MAX_SPEED, 20 * a.size * len(a) / shortest_s / MULTIPLY_ADDS_PER_S))
