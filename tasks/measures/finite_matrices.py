"""Matrices that torch's decompositions accept: they raise where a number is not finite, as squares of huge features are.

Shapes: A x B of a matrix, other axes in front.
"""

from __future__ import annotations

import torch
from torch import Tensor


def zero_unless_finite(matrix_AB: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices with zeros in place of each that is not finite, and which ones are finite [..., 1, 1]."""
    is_finite = matrix_AB.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.where(is_finite, matrix_AB, 0.0), is_finite
