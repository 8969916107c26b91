"""Metrics of trials on classes: the geometry of each layer, and the network's weights.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.measures.alignment import (
    distance_to_optima,
    feature_alignment,
    row_norms,
    smallest_deviations,
    square_norms,
    weight_alignment,
)
from depthrate.tasks.measures.geodesic import Geodesic, add_geodesic
from depthrate.tasks.measures.linear_probe import probe_accuracy
from depthrate.tasks.measures.named import Named, NamedMeasurements
from depthrate.tasks.measures.neural_collapse import class_collapse, class_moments, spectrum
from depthrate.tasks.supervised.parameters import SupervisedParameters
from depthrate.tasks.supervised.theory import UnconstrainedOptimum
from depthrate.tasks.training.layers import (
    Columns,
    LayerMeasurements,
    Measure,
    OfLast,
    OfMoments,
    null_if_not_finite,
    runs_of_trials,
    to_cpu,
)
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import EVALUATION_ROWS


def layer_measurements(
    class_counts_K: np.ndarray,
    rank_tol: float,
    *,
    split: str = "train",
    epsilon: float | None = None,
    names: Named = MappingProxyType({}),
    of_last: OfLast | None = None,
) -> LayerMeasurements:
    """Build the metrics of a layer: the geometry of its classes, and their alignment with the last weight.

    Args:
        class_counts_K: Number of samples of each class.
        rank_tol: Singular values above this share of the largest count for the rank.
        split: Split written to each row.
        epsilon: Tolerance of effective_depth. If given, the path through the layers is compared with the geodesic.
        names: Additional metrics.
        of_last: Metrics of the last layer alone.
    """
    counts_K = torch.from_numpy(class_counts_K)
    labels_N = np.repeat(np.arange(len(class_counts_K)), class_counts_K)
    named = NamedMeasurements(names, lambda h_ND: probe_accuracy(h_ND, labels_N), torch.from_numpy(labels_N))

    def reduce(h_TND: Tensor, weight_TKD: Tensor | None) -> dict[str, Tensor]:
        alignment = {} if weight_TKD is None else feature_alignment(h_TND, counts_K, weight_TKD)
        return class_moments(h_TND, counts_K) | alignment | named.measure_alone(h_TND, weight_TKD)

    def finish(moments: Columns, weight_TKD: Tensor | None, dtype: torch.dtype) -> dict[str, Tensor]:
        alignment = {} if weight_TKD is None else weight_alignment(weight_TKD)
        return class_collapse(moments) | alignment | spectrum(moments["means"], rank_tol, dtype)

    def of_path(rows: Sequence[dict[str, Any]], ends: tuple[Tensor, Tensor], layers: Iterable[Tensor]) -> None:
        assert epsilon is not None
        line = Geodesic(*ends, counts_K)
        add_geodesic(rows, line, ends, layers, epsilon)

    return LayerMeasurements(
        reduce,
        finish,
        num_classes=len(counts_K),
        of_path=None if epsilon is None else of_path,
        split=split,
        of_pair=named.measure_against_others if named.needs_other_layers else None,
        of_last=of_last,
    )


def layer_and_weight_measurements(
    class_counts_K: np.ndarray,
    trial: SupervisedParameters,
    split: str,
    names: Named,
    find_optimum: Callable[[float], UnconstrainedOptimum | None],
) -> Measure:
    """Build the metrics of built-in networks: of layers and, with the training split's last layer, of weights.

    Args:
        class_counts_K: Number of samples of each class.
        trial: Parameters that the trials of a pack share.
        split: Split written to each row.
        names: Additional metrics.
        find_optimum: Weight decay of the last layer -> optimum of the unconstrained model, None if it is not known.
    """
    counts_K = torch.from_numpy(class_counts_K)

    def of_last(trainer: FusedTrainer, positions: Sequence[int]) -> OfMoments:
        optima = [find_optimum(trainer.hyperparameters[position].weight_decays["last"]) for position in positions]

        def measure(moments: Columns, weight_TKD: Tensor) -> dict[str, Tensor]:
            distances = [
                torch.tensor(math.nan)
                if optimum is None or optimum.row_norm is None
                else distance_to_optima(
                    means_KD, within, counts_K, weight_KD, optimum.row_norm, is_simplex=optimum.is_simplex
                )
                for means_KD, within, weight_KD, optimum in zip(
                    moments["means"], moments["within"], weight_TKD, optima, strict=True
                )
            ]
            return {"gufm_distance": torch.stack(distances)}

        return measure

    layers = layer_measurements(
        class_counts_K,
        trial.rank_tol,
        split=split,
        epsilon=trial.epsilon if trial.geodesic else None,
        names=names,
        of_last=of_last if split == "train" else None,
    )
    return layers if split != "train" else _WithWeights(layers, lists_deviations=bool(trial.polish))


class _WithWeights:
    """Adds metrics of the network's weights to the last layer's row."""

    def __init__(self, layers: LayerMeasurements, *, lists_deviations: bool):
        self._layers, self._lists_deviations = layers, lists_deviations

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return one row per layer for each trial."""
        rows_of_trials = self._layers(trainer, positions, step)
        weights = trainer.parameters()
        squares = square_norms(weights, {spec.name: spec.decay for spec in trainer.specs})
        columns = {f"square_{name}": squares_T for name, squares_T in squares.items()}
        last = trainer.network.last_weight
        if last is not None:
            columns["norms"] = row_norms(weights[last])
        variances = [None if self._lists_deviations else trainer.smallest_variance(position) for position in positions]
        others = [position for position, variance in zip(positions, variances, strict=True) if variance is None]
        parts = [_deviations(trainer, first, count) for first, count in runs_of_trials(trainer, others)]
        if parts:
            columns["deviations"] = torch.cat(parts)
        (read,) = to_cpu([columns])
        numbers = {name: values.tolist() for name, values in read.items()}
        computed, norms = iter(numbers.get("deviations", ())), numbers.get("norms")
        for position, variance, rows in zip(positions, variances, rows_of_trials, strict=True):
            sizes = {name: numbers[f"square_{name}"][position] for name in squares}
            decays = trainer.hyperparameters[position].weight_decays
            costs = {f"regularisation_{name}": decays[name] / 2 * size for name, size in sizes.items()}
            hidden = sizes.get("hidden", 0.0)
            deviations = next(computed) if variance is None else [variance**0.5]
            smallest = float(np.min(deviations)) if deviations else None  # NaN stays NaN
            rows[-1] |= null_if_not_finite({"hidden_square_norm": hidden, "smallest_deviation": smallest, **costs})
            if self._lists_deviations and deviations:
                rows[-1]["deviations"] = deviations
            if norms is not None:
                rows[-1]["row_norms"] = norms[position]
        return rows_of_trials


def _deviations(trainer: FusedTrainer, first: int, num_trials: int) -> Tensor:
    """Return the smallest deviation before each LayerNorm of consecutive trials, [T, M] for M of them.

    Samples are processed in parts, since a transformer stores numbers for all positions of a sample, not only for the last.
    """
    network = trainer.network
    weights = {name: weight[first : first + num_trials] for name, weight in trainer.parameters().items()}
    with torch.no_grad():
        parts = [
            [*smallest_deviations(network.norm_inputs(weights, part_NI.expand(num_trials, *part_NI.shape)))]
            for part_NI in torch.split(trainer.x_NI, max(1, EVALUATION_ROWS // network.rows_per_sample))
        ]
    smallest = [torch.stack(of_one_norm).amin(0) for of_one_norm in zip(*parts, strict=True)]
    return torch.stack(smallest, dim=1) if smallest else torch.zeros(num_trials, 0, device=trainer.device)
