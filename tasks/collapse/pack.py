"""The task `collapse`: what a pack of it trains on, and what it measures of every layer at log-spaced steps.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.collapse.schema import (
    CollapseParameters,
    context_length,
    draw_seed,
    objective_bound,
    objective_limit,
    vocabulary_size,
    weight_decays,
)
from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.measures.alignment import weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.geodesic import Geodesic, add_geodesic
from depthrate.tasks.measures.linear_probe import probe_accuracy
from depthrate.tasks.measures.named import NamedMeasurements
from depthrate.tasks.measures.named_columns import asked
from depthrate.tasks.measures.norms import row_norms, smallest_deviations, square_norms
from depthrate.tasks.measures.spectra import spectrum
from depthrate.tasks.networks.network import Network, Tensors
from depthrate.tasks.training.layers import LayerMeasurements, defined
from depthrate.tasks.training.plan import EVALUATION_ROWS
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining, OwnCurves, Row, training_of


def loaded(trial: CollapseParameters, source: DataSource) -> Dataset:
    """Return the published data set that a trial trains on.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    return load_dataset(
        trial.dataset,
        source,
        samples_per_class=trial.samples_per_class,
        data_seed=trial.data_seed,
        normalize=trial.normalize,
        context_length=context_length(trial),
        vocabulary_size=vocabulary_size(trial),
        dtype=trial.dtype,
        test=trial.test,
    )


def training(trials: Sequence[CollapseParameters], dataset: Dataset, network: Network) -> NetworkTraining:
    """Return what a pack of trials does with a data set."""
    shared, test = trials[0], dataset.test
    measure_test = None
    if test is not None:
        measure_test = layer_measurements(
            test.class_counts_K,
            shared.rank_tol,
            split="test",
            epsilon=_epsilon(shared),
            names=asked(shared.measure),
        )
    return training_of(
        trials,
        network,
        dataset,
        [weight_decays(trial) for trial in trials],
        seeds=[draw_seed(trial) for trial in trials],
        measure=_Measurements(dataset.class_counts_K, shared),
        measure_test=measure_test,
        own_curves=_objective_gap(trials, dataset),
    )


class _Measurements:
    """What is measured of trials: their layers, and beside the last of them the networks' weights."""

    def __init__(self, class_counts_K: np.ndarray, trial: CollapseParameters):
        self._of_each_norm = bool(trial.polish)
        self._of_layers = layer_measurements(
            class_counts_K, trial.rank_tol, epsilon=_epsilon(trial), names=asked(trial.measure)
        )

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return of each trial one row a layer."""
        rows_of_trials = self._of_layers(trainer, positions, step)
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
            deviations = _deviations(trainer, alone) if self._of_each_norm else []
            smallest = float(np.min(deviations)) if deviations else _smallest_deviation(trainer, position, alone)
            rows[-1] |= defined({"hidden_square_norm": hidden, "smallest_deviation": smallest, **costs})
            rows[-1] |= {"deviations": deviations} if deviations else {}
            rows[-1] |= {} if norms is None else {"row_norms": norms[trial]}
        return rows_of_trials


def _smallest_deviation(trainer: FusedTrainer, position: int, weights: Tensors) -> float | None:
    variance = trainer.smallest_variance(position)
    if variance is not None:
        return float(variance**0.5)
    deviations = _deviations(trainer, weights)
    return float(np.min(deviations)) if deviations else None  # NaN stays NaN


def _deviations(trainer: FusedTrainer, weights: Tensors) -> list[float]:
    """Look at some samples of a trial at once: a transformer holds far more of each than its last position."""
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


def _epsilon(trial: CollapseParameters) -> float | None:
    """Return what `layer_measurements` is given: null where the geodesic is not asked for."""
    return trial.epsilon if trial.geodesic else None


def layer_measurements(
    class_counts_K: np.ndarray,
    rank_tol: float,
    *,
    split: str = "train",
    epsilon: float | None = None,
    names: Collection[str] = (),
) -> LayerMeasurements:
    """Return what is measured of a layer: the geometry of its classes, and how the last weight stands to them.

    With `epsilon` also how the path through the layers stands to the geodesic; with `names` what is asked for by name.
    """
    on_cpu_K = torch.from_numpy(class_counts_K)
    labels_N = np.repeat(np.arange(len(class_counts_K)), class_counts_K)
    named = NamedMeasurements(names, lambda h_ND: probe_accuracy(h_ND, labels_N))

    def of_features(h_TND: Tensor) -> dict[str, Tensor]:
        precision = h_TND.dtype
        counts_K, h_TND = on_cpu_K.to(h_TND.device), h_TND.double()
        means_TKD = class_means(h_TND, counts_K)
        of_classes = class_collapse(h_TND, counts_K, means_TKD) | spectrum(means_TKD, rank_tol, precision)
        return of_classes | named.alone(h_TND)

    def of_weights(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
        return weight_alignment(h_TND, on_cpu_K.to(h_TND.device), weight_TKD)

    def of_path(rows: Sequence[dict[str, Any]], ends: tuple[Tensor, Tensor], layers: Iterable[Tensor]) -> None:
        assert epsilon is not None
        line = Geodesic(*ends, on_cpu_K.to(ends[0].device))
        add_geodesic(rows, line, ends, layers, epsilon)

    return LayerMeasurements(
        of_features, of_weights, None if epsilon is None else of_path, split, named.compared if named.compares else None
    )


def _objective_gap(trials: Sequence[CollapseParameters], dataset: Dataset) -> OwnCurves:
    """Return what adds to a row of curves the objective above its limit for infinite depth, and the theorem's bound on that:
    null where there is none."""
    num_classes = len(dataset.class_counts_K)
    limits = [objective_limit(trial, num_classes) if dataset.is_balanced else None for trial in trials]
    closest = dataset.closest_samples if any(limit is not None for limit in limits) else None
    bounds = [
        None if limit is None or closest is None else objective_bound(trial, len(dataset.x_NI), closest)
        for limit, trial in zip(limits, trials, strict=True)
    ]

    def gap(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        limit = limits[index]
        return {
            "objective_gap": None if limit is None else row["objective"] - limit,
            "objective_bound": bounds[index],
        }

    return gap
