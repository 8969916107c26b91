"""Data of P1's Appendix C: X = I (x) 1 + E."""

import numpy as np


def make(noise: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Return 20 inputs for each of 4 classes: the class's unit vector plus normal noise of deviation `noise`."""
    y_N = np.repeat(np.arange(4), 20)
    return np.eye(4)[y_N] + noise * np.random.default_rng(0).normal(size=(len(y_N), 4)), y_N
