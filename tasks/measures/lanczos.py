"""Largest eigenvalues and traces of symmetric matrices that are known by their products, one matrix per trial, in float64.

A trial's result does not depend on other trials: nothing is summed across them, and it is fixed once the trial has converged.

Shapes: T trials, P rows of a trial's matrix, M vectors of the basis, S directions.
Sources: Golub and Van Loan, Matrix Computations, 4th ed., section 10.3 (Lanczos' method with complete reorthogonalisation);
Hutchinson, A stochastic estimator of the trace of the influence matrix, Commun. Stat. Simul. Comput. 19 (1990).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

TOLERANCE = 1e-5
"""Residual of an eigenvalue, over the largest size of the eigenvalues, at which the method stops. It bounds the error."""
MAX_RESIDUAL = 1e-3
"""Largest such residual of a returned eigenvalue."""
Product = Callable[[Tensor], Tensor]
"""Multiplies each trial's matrix by its direction, [T, P]."""


def largest_eigenvalues(product: Product, starts: Sequence[Tensor], max_products: int) -> Tensor:
    """Compute as many of the largest eigenvalues as there are random starts [T, P], in descending order.

    Each is the largest one orthogonal to the eigenvectors before it, because one Krylov space holds one vector per eigenspace.

    Returns:
        Eigenvalues [T, len(starts)]. All are NaN for a trial if one of them did not converge.
    """
    found: list[Tensor] = []
    values, scale_T = [], torch.zeros_like(starts[0][:, 0])
    for start_TP in starts:
        value_T, vector_TP, scale_T = _largest(product, start_TP, found, scale_T, max_products)
        values.append(value_T)
        found.append(vector_TP)
    values_TS = torch.stack(values, dim=1)
    return values_TS.where(values_TS.isfinite().all(1, keepdim=True), math.nan).sort(dim=1, descending=True).values


def _largest(
    product: Product, start_TP: Tensor, found: Sequence[Tensor], scale_T: Tensor, max_products: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest eigenvalue [T] orthogonal to found vectors, its vector, and the largest size of eigenvalues so far."""
    basis: list[Tensor] = []
    diagonal: list[Tensor] = []
    norms = []
    next_TP = _normalised(_without(start_TP, found))
    value_T, vector_TP = torch.full_like(scale_T, math.nan), torch.zeros_like(start_TP)
    is_done_T = torch.zeros_like(scale_T, dtype=torch.bool)
    for number in range(1, max_products + 1):
        basis.append(next_TP)
        image_TP = product(next_TP)
        diagonal.append((next_TP * image_TP).sum(1))
        rest_TP = _without(image_TP, [*found, *basis])
        norms.append(rest_TP.norm(dim=1))
        off = torch.diag_embed(torch.stack(norms[:-1], dim=1), offset=1) if number > 1 else 0.0
        matrix_TMM = torch.diag_embed(torch.stack(diagonal, dim=1)) + off
        ritz_TM, mixing_TMM = torch.linalg.eigh(matrix_TMM.nan_to_num(), UPLO="U")
        weights_TM = mixing_TMM[:, :, -1]
        scale_T = torch.where(is_done_T, scale_T, torch.maximum(scale_T, ritz_TM.abs().amax(1)))
        residual_T = norms[-1] * weights_TM[:, -1].abs()
        limit = TOLERANCE if number < max_products else MAX_RESIDUAL
        is_new_T = ~is_done_T & (residual_T <= limit * scale_T)
        if is_new_T.any():
            combined_TP = torch.einsum("tm,mtp->tp", weights_TM, torch.stack(basis))
            value_T = torch.where(is_new_T, ritz_TM[:, -1], value_T)
            vector_TP = torch.where(is_new_T.unsqueeze(1), combined_TP, vector_TP)
            is_done_T |= is_new_T
        if is_done_T.all():
            break
        next_TP = _normalised(rest_TP)
    return value_T, vector_TP, scale_T


def _without(vector_TP: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """Subtract the projections on orthonormal vectors, twice against rounding."""
    for other_TP in (*basis, *basis):
        vector_TP = vector_TP - (vector_TP * other_TP).sum(1, keepdim=True) * other_TP
    return vector_TP


def _normalised(vector_TP: Tensor) -> Tensor:
    return vector_TP / vector_TP.norm(dim=1, keepdim=True).clamp(min=torch.finfo(vector_TP.dtype).tiny)


def trace(product: Product, directions: Iterable[Tensor], *, is_basis: bool) -> tuple[Tensor, Tensor]:
    """Compute each trial's trace and its standard error, [T] each.

    Args:
        product: Multiplies each trial's matrix.
        directions: Orthonormal basis, or independent vectors of random signs, each [T, P].
        is_basis: Whether they are a basis. The trace is then exact.
    """
    values_TS = torch.stack([(direction_TP * product(direction_TP)).sum(1) for direction_TP in directions], dim=1)
    if is_basis:
        return values_TS.sum(1), torch.zeros_like(values_TS[:, 0])
    mean_T, count = values_TS.mean(1), values_TS.shape[1]
    # torch's std rounds differently in packs of other sizes
    return mean_T, ((values_TS - mean_T.unsqueeze(1)).square().sum(1) / (count * (count - 1))).sqrt()
