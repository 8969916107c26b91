"""Metrics of trials on classes: the geometry of each layer, and the network's weights.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.measures.alignment import distance_to_optima, weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.geodesic import Geodesic, add_geodesic
from depthrate.tasks.measures.linear_probe import probe_accuracy
from depthrate.tasks.measures.named import NamedMeasurements
from depthrate.tasks.measures.named_columns import parse_measure
from depthrate.tasks.measures.norms import row_norms, smallest_deviations, square_norms
from depthrate.tasks.measures.spectra import spectrum
from depthrate.tasks.networks.network import Tensors
from depthrate.tasks.supervised.parameters import SupervisedParameters
from depthrate.tasks.supervised.theory import UnconstrainedOptimum
from depthrate.tasks.training.held_out import Measure
from depthrate.tasks.training.layers import LayerMeasurements, OfLast, OfWeights, null_if_not_finite
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import EVALUATION_ROWS


def layer_measurements(
    class_counts_K: np.ndarray,
    rank_tol: float,
    *,
    split: str = "train",
    epsilon: float | None = None,
    names: Collection[str] = (),
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
    cpu_counts_K = torch.from_numpy(class_counts_K)
    labels_N = np.repeat(np.arange(len(class_counts_K)), class_counts_K)
    named = NamedMeasurements(names, lambda h_ND: probe_accuracy(h_ND, labels_N))

    def of_features(h_TND: Tensor) -> dict[str, Tensor]:
        precision = h_TND.dtype
        counts_K, h_TND = cpu_counts_K.to(h_TND.device), h_TND.double()
        means_TKD = class_means(h_TND, counts_K)
        geometry = class_collapse(h_TND, counts_K, means_TKD) | spectrum(means_TKD, rank_tol, precision)
        return geometry | named.measure_alone(h_TND)

    def of_weights(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
        return weight_alignment(h_TND, cpu_counts_K.to(h_TND.device), weight_TKD)

    def of_path(rows: Sequence[dict[str, Any]], ends: tuple[Tensor, Tensor], layers: Iterable[Tensor]) -> None:
        assert epsilon is not None
        line = Geodesic(*ends, cpu_counts_K.to(ends[0].device))
        add_geodesic(rows, line, ends, layers, epsilon)

    return LayerMeasurements(
        of_features,
        of_weights,
        None if epsilon is None else of_path,
        split,
        named.measure_against_others if named.needs_other_layers else None,
        of_last,
    )


def layer_and_weight_measurements(
    class_counts_K: np.ndarray,
    trial: SupervisedParameters,
    split: str,
    find_optimum: Callable[[float], UnconstrainedOptimum | None],
) -> Measure:
    """Build the metrics of built-in networks: of layers and, with the training split's last layer, of weights.

    Args:
        class_counts_K: Number of samples of each class.
        trial: Parameters that the trials of a pack share.
        split: Split written to each row.
        find_optimum: Weight decay of the last layer -> optimum of the unconstrained model, None if it is not known.
    """
    counts_K = torch.from_numpy(class_counts_K)

    def of_last(trainer: FusedTrainer, positions: Sequence[int]) -> OfWeights:
        optima = [find_optimum(trainer.hyperparameters[position].weight_decays["last"]) for position in positions]

        def measure(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
            distances = [
                torch.tensor(math.nan)
                if optimum is None or optimum.row_norm is None
                else distance_to_optima(
                    h_ND, counts_K.to(h_ND.device), weight_KD, optimum.row_norm, is_simplex=optimum.is_simplex
                )
                for h_ND, weight_KD, optimum in zip(h_TND, weight_TKD, optima, strict=True)
            ]
            return {"gufm_distance": torch.stack(distances)}

        return measure

    layers = layer_measurements(
        class_counts_K,
        trial.rank_tol,
        split=split,
        epsilon=trial.epsilon if trial.geodesic else None,
        names=parse_measure(trial.measure),
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
        weights = {name: weight[list(positions)] for name, weight in trainer.parameters().items()}
        squares = square_norms(weights, {spec.name: spec.decay for spec in trainer.specs})
        sizes = {name: square_T.tolist() for name, square_T in squares.items()}
        last = trainer.network.last_weight
        norms = None if last is None else row_norms(weights[last]).tolist()
        for trial, (position, rows) in enumerate(zip(positions, rows_of_trials, strict=True)):
            alone = {name: weight[trial : trial + 1] for name, weight in weights.items()}
            decays = trainer.hyperparameters[position].weight_decays
            costs = {f"regularisation_{name}": decays[name] / 2 * size_T[trial] for name, size_T in sizes.items()}
            hidden = sizes["hidden"][trial] if "hidden" in sizes else 0.0
            variance = None if self._lists_deviations else trainer.smallest_variance(position)
            deviations = _deviations(trainer, alone) if variance is None else [float(variance**0.5)]
            smallest = float(np.min(deviations)) if deviations else None  # NaN stays NaN
            rows[-1] |= null_if_not_finite({"hidden_square_norm": hidden, "smallest_deviation": smallest, **costs})
            if self._lists_deviations and deviations:
                rows[-1]["deviations"] = deviations
            if norms is not None:
                rows[-1]["row_norms"] = norms[trial]
        return rows_of_trials


def _deviations(trainer: FusedTrainer, weights: Tensors) -> list[float]:
    """Return the smallest deviation before each LayerNorm of one trial.

    Samples are processed in parts, since a transformer stores numbers for all positions of a sample, not only for the last.
    """
    network = trainer.network
    with torch.no_grad():
        parts = [
            [
                smallest_T.item()
                for smallest_T in smallest_deviations(network.norm_inputs(weights, part_NI.unsqueeze(0)))
            ]
            for part_NI in torch.split(trainer.x_NI, max(1, EVALUATION_ROWS // network.rows_per_sample))
        ]
    return [min(of_one_norm) for of_one_norm in zip(*parts, strict=True)]
