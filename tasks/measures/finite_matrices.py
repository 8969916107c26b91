"""Finite input for torch's decompositions, which raise on infinities like the squares of huge features.

Shapes: [..., A, B].
"""

import torch
from torch import Tensor


def zero_unless_finite(matrix_AB: Tensor) -> tuple[Tensor, Tensor]:
    """Replace matrices that contain a non-finite number by zeros. Also return which are finite, [..., 1, 1]."""
    is_finite = matrix_AB.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.where(is_finite, matrix_AB, 0.0), is_finite
