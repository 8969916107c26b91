"""Metrics of weights that `measure` requests: alignment of consecutive weights, and the Hessian at the end of training.

The Hessian is of the curves' `objective`: the loss over all samples, in evaluation mode, plus weight decay. Products with it
are exact derivatives in the dtype of training, fused over trials. A trial's numbers do not depend on its pack.

Shapes: T trials, P parameters of one trial, D numbers per feature.
"""

import math
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.measures.alignment import consecutive_alignment
from depthrate.tasks.measures.lanczos import largest_eigenvalues, trace
from depthrate.tasks.measures.named_columns import ALIGNMENT_NAMES, EIGENVALUE_NAMES, HESSIAN_NAMES, TRACE_NAMES
from depthrate.tasks.networks.flat_parameters import join_rows, leaves_of, products_of, split_parameters, start_trials
from depthrate.tasks.networks.module_report import samples
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.layers import Measure, null_if_not_finite
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import (
    BASIS_NUMBERS,
    EXACT_TRACE_PARAMETERS,
    HESSIAN_EIGENVALUES,
    LANCZOS_PRODUCTS,
    TRACE_PROBES,
    Hyperparameters,
)

ASYMMETRY = 1e-4
"""Largest difference between v^T H w and w^T H v, over ||H v|| ||w||, that counts as rounding."""


def with_alignment(measure: Measure, names: Collection[str], num_classes: int) -> Measure:
    """Add the requested alignments of consecutive weights to the rows of a measurement."""
    requested = [name for name in ALIGNMENT_NAMES if name in names]
    if not requested:
        return measure

    def measure_all(trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        rows_of_trials = measure(trainer, positions, step)
        columns = {
            layer: consecutive_alignment(written_TDI, read_TOD, num_classes)
            for layer, (written_TDI, read_TOD) in trainer.network.weight_pairs(trainer.parameters()).items()
        }
        for position, rows in zip(positions, rows_of_trials, strict=True):
            for row in rows:
                if (values := columns.get(row["layer"])) is not None:
                    row |= null_if_not_finite({name: values[name][position].item() for name in requested})
        return rows_of_trials

    return measure_all


def hessian_columns(trainer: FusedTrainer, names: Set[str]) -> list[dict[str, Any]]:
    """Compute the requested metrics of the Hessian for each trial, without those for which Lanczos' method did not converge."""
    is_trained_P = torch.cat([torch.full((spec.size,), float(spec.is_trained)) for spec in trainer.specs]).double()
    together = max(1, BASIS_NUMBERS // (LANCZOS_PRODUCTS * len(is_trained_P)))
    chunks = (
        (first, trainer.hyperparameters[first : first + together]) for first in range(0, trainer.num_trials, together)
    )
    return [row for chunk in chunks for row in _columns(trainer, *chunk, is_trained_P, names)]


def _columns(
    trainer: FusedTrainer, first: int, hyperparameters: Sequence[Hyperparameters], is_trained_P: Tensor, names: Set[str]
) -> list[dict[str, Any]]:
    """Compute the requested metrics of consecutive trials, with random numbers from their seeds."""
    num_trained, rows = int(is_trained_P.sum()), [dict[str, Any]() for _ in hyperparameters]

    def product(direction_TP: Tensor) -> Tensor:
        return trainer.hessian_product(first, direction_TP.to(trainer.theta_TP)).double()

    def random(purpose: str, count: int) -> Iterator[Tensor]:
        streams = [random_stream(h.seed, purpose) for h in hyperparameters]
        for _ in range(count):
            drawn_TP = torch.stack([torch.randn(len(is_trained_P), generator=stream) for stream in streams])
            yield (drawn_TP.double() * is_trained_P).to(trainer.device)

    if not names.isdisjoint(EIGENVALUE_NAMES):
        starts = list(random("hessian eigenvalues", min(HESSIAN_EIGENVALUES, num_trained)))
        for row, values in zip(rows, largest_eigenvalues(product, starts, LANCZOS_PRODUCTS).tolist(), strict=True):
            if all(map(math.isfinite, values)):
                row |= {"hessian_max": values[0], "hessian_eigenvalues": values}
    if not names.isdisjoint(TRACE_NAMES):
        is_exact = num_trained <= EXACT_TRACE_PARAMETERS
        places = is_trained_P.nonzero().squeeze(1).to(trainer.device)
        units = (F.one_hot(place, len(is_trained_P)).double().expand(len(rows), -1) for place in places)
        signs = (drawn_TP.sign() for drawn_TP in random("hessian trace", TRACE_PROBES))
        values_T, errors_T = trace(product, units if is_exact else signs, is_basis=is_exact)
        for row, value, error in zip(rows, values_T.tolist(), errors_T.tolist(), strict=True):
            row |= null_if_not_finite({"hessian_trace": value, "hessian_trace_error": error})
    return rows


def check_products(network: Network, data: DataShape, dtype: torch.dtype) -> None:
    """Check that a network's output can be differentiated twice, on two samples.

    Raises:
        ParameterError: It cannot, or the second derivatives are not symmetric, as those of an autograd.Function with a backward
            pass that cannot be differentiated.
    """
    x_NI = samples(data, 2).flatten(1)
    x_NI, stream = x_NI.to(dtype) if x_NI.is_floating_point() else x_NI, random_stream(0, "init")
    theta_1P, state = start_trials(network, "uniform", [stream], dtype)
    specs = network.parameter_specs()
    first_1P, second_1P = (torch.randn(theta_1P.shape, generator=stream).to(theta_1P) for _ in range(2))

    def product(direction_1P: Tensor) -> Tensor:
        leaves = leaves_of(split_parameters(theta_1P, specs), network.fixed_parameters)
        term = network.logits(leaves, x_NI.unsqueeze(0), state).square().sum()
        pieces = products_of(term, leaves, split_parameters(direction_1P, specs))
        return join_rows(pieces)

    try:
        product_1P = product(first_1P)
        difference = (product_1P * second_1P).sum() - (product(second_1P) * first_1P).sum()
        is_symmetric = difference.abs() <= ASYMMETRY * product_1P.norm() * second_1P.norm()
        fault = "" if is_symmetric else "they are not symmetric"
    except Exception as error:  # of a user's module
        fault = str(error)
    if fault:
        raise ParameterError(
            f"measure has metrics of the Hessian, but torch has no second derivatives of the network: {fault}. Leave out "
            f"{', '.join(HESSIAN_NAMES)}, or change the network."
        )
