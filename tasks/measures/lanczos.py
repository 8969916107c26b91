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

    Each is the largest one orthogonal to the eigenvectors before it, because a Krylov space has one vector per eigenspace.

    Returns:
        Eigenvalues [T, len(starts)]. All are NaN for a trial if one of them did not converge within `max_products` products.
    """
    found: list[Tensor] = []
    values: list[Tensor] = []
    scale_T = torch.zeros_like(starts[0][:, 0])
    for start_TP in starts:
        value_T, vector_TP = torch.full_like(scale_T, math.nan), torch.zeros_like(start_TP)
        rest_TP = _without(start_TP, found)
        basis: list[Tensor] = []
        diagonal: list[Tensor] = []
        norms = [rest_TP.norm(dim=1)]
        while len(basis) < max_products and (is_open_T := value_T.isnan()).any():
            basis.append(rest_TP / norms[-1].unsqueeze(1).clamp(min=torch.finfo(rest_TP.dtype).tiny))
            image_TP = product(basis[-1])
            diagonal.append((basis[-1] * image_TP).sum(1))
            tridiagonal_TMM = torch.diag_embed(torch.stack(diagonal, dim=1))
            if len(basis) > 1:
                tridiagonal_TMM += torch.diag_embed(torch.stack(norms[1:], dim=1), offset=1)
            ritz_TM, mixing_TMM = torch.linalg.eigh(tridiagonal_TMM.nan_to_num(), UPLO="U")
            rest_TP = _without(image_TP, [*found, *basis])
            norms.append(rest_TP.norm(dim=1))
            scale_T = torch.where(is_open_T, torch.maximum(scale_T, ritz_TM.abs().amax(1)), scale_T)
            limit = TOLERANCE if len(basis) < max_products else MAX_RESIDUAL
            is_new_T = is_open_T & (norms[-1] * mixing_TMM[:, -1, -1].abs() <= limit * scale_T)
            if is_new_T.any():
                value_T = torch.where(is_new_T, ritz_TM[:, -1], value_T)
                combined_TP = torch.einsum("tm,mtp->tp", mixing_TMM[:, :, -1], torch.stack(basis))
                vector_TP = torch.where(is_new_T.unsqueeze(1), combined_TP, vector_TP)
        values.append(value_T)
        found.append(vector_TP)
    values_TS = torch.stack(values, dim=1)
    return values_TS.where(values_TS.isfinite().all(1, keepdim=True), math.nan).sort(dim=1, descending=True).values


def _without(vector_TP: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """Subtract the projections on orthonormal vectors, twice against rounding."""
    for other_TP in (*basis, *basis):
        vector_TP = vector_TP - (vector_TP * other_TP).sum(1, keepdim=True) * other_TP
    return vector_TP


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
