"""The tasks `ufm` and `mufm`: a pack's inputs, its solver or training, and metrics of every layer.

The exact solver is gradient descent that starts at the optimum and takes no step, so metrics, stored features and figures
are the same. Shapes: T trials, N samples sorted by class, D = dimension, K classes.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.dataset import numbered_samples
from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.measures.alignment import weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.progressive import monotonicity
from depthrate.tasks.papers.unconstrained.held_descent import PROXIMITY, Descent, UnconstrainedDescent
from depthrate.tasks.papers.unconstrained.held_optimum import (
    Array,
    ExactSolution,
    UnconstrainedProblem,
    solve,
    ufm_optimum,
)
from depthrate.tasks.papers.unconstrained.network import INPUTS, WEIGHT, UnconstrainedLayers
from depthrate.tasks.papers.unconstrained.parameters import EXACT, GAUSSIAN, INPUT, UnconstrainedParameters
from depthrate.tasks.training.layers import LayerMeasurements
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining, Row, make_training


def inputs(trial: UnconstrainedParameters, source: DataSource) -> Array:
    """Return X [N, D] of one trial.

    Gaussian: x ~ N(mu_k, I) with mu_k uniform on the unit sphere (P3, section V). A data set: the first classes, sampled
    with data_seed, projected on their first principal components and scaled to mean square 1 per coordinate.

    Raises:
        DatasetError: A file of the data set is missing or corrupt.
    """
    classes, per_class, dimension = trial.num_classes, trial.samples_per_class, trial.dimension
    if trial.data == GAUSSIAN:
        generator = np.random.default_rng([trial.data_seed, classes, dimension])
        means_KD = generator.normal(size=(classes, dimension))
        means_KD /= np.linalg.norm(means_KD, axis=1, keepdims=True)
        return np.repeat(means_KD, per_class, axis=0) + generator.normal(size=(classes * per_class, dimension))
    dataset = load_dataset(
        trial.data, source, samples_per_class=per_class, data_seed=trial.data_seed, normalize="global"
    )
    x_NI = dataset.x_NI[dataset.labels_N < classes]
    x_NI = x_NI - x_NI.mean(0)
    _, _, directions = np.linalg.svd(x_NI, full_matrices=False)
    x_ND = x_NI @ directions[:dimension].T
    return np.asarray(x_ND / np.sqrt((x_ND**2).mean()))


def training(
    trials: Sequence[UnconstrainedParameters], network: UnconstrainedLayers, inputs_of_trials: Sequence[Array]
) -> NetworkTraining:
    """Build the training of a pack of trials from their inputs, each [N, D]."""
    shared = trials[0]
    optima = [_optimum(trial, x_ND) for trial, x_ND in zip(trials, inputs_of_trials, strict=True)]
    starts = [_start(network, *of_trial) for of_trial in zip(trials, inputs_of_trials, optima, strict=True)]
    dataset = numbered_samples(network.num_classes, network.num_samples)

    def gaps(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        """Return the lowest objective (UFM: in closed form) and the distance of a curve row from it."""
        trial = trials[index]
        lowest = (
            optima[index].objective
            if trial.is_anchored
            else ufm_optimum(
                trial.loss,
                num_classes=trial.num_classes,
                weight_decay=trial.weight_decay,
                weight_decay_features=trial.weight_decay_features,
            )
        )
        return {"objective_gap": row["objective"] - lowest, "optimum": lowest}

    return make_training(
        trials,
        network,
        dataset,
        [{WEIGHT: trial.weight_decay, PROXIMITY: trial.proximity} for trial in trials],
        measure=_PathMeasurements(dataset.class_counts_K),
        extra_curves=gaps,
        trainer=functools.partial(
            UnconstrainedDescent,
            descent=Descent(anchored=shared.is_anchored, scaled_steps=shared.scaled_steps),
            inputs_TND=torch.from_numpy(np.stack(inputs_of_trials)),
            start_TP=torch.stack(starts),
        ),
    )


def _optimum(trial: UnconstrainedParameters, x_ND: Array) -> ExactSolution:
    """Solve one block with lambda / L, whose optimum equals L blocks' (P3, Theorem 3, corrected).

    For fixed first and last features, the blocks between them split the distance evenly: L steps of 1/L of the distance
    cost 1/L of its square.
    """
    problem = UnconstrainedProblem(
        target_ND=x_ND if trial.is_anchored else np.zeros_like(x_ND),
        labels_N=np.repeat(np.arange(trial.num_classes), trial.samples_per_class),
        num_classes=trial.num_classes,
        weight_decay=trial.weight_decay,
        proximity=trial.proximity / trial.depth,
    )
    return solve(problem, trial.loss, np.random.default_rng(trial.seed))


def _start(network: UnconstrainedLayers, trial: UnconstrainedParameters, x_ND: Array, optimum: ExactSolution) -> Tensor:
    """Return the flat start of a trial.

    The exact solver starts at the optimum, with features evenly spaced between X and H. Descent starts at H = X or at random.
    """
    if trial.solver == EXACT:
        shares = [layer / network.depth for layer in range(1, network.depth + 1)]
        features = [x_ND + share * (optimum.h_ND - x_ND) for share in shares]
        return torch.from_numpy(np.concatenate([array.ravel() for array in (*features, optimum.weight_KD)]))
    generator, shape = random_stream(trial.seed, "init"), (network.num_classes, network.dimension)
    random_KD = torch.randn(shape, generator=generator, dtype=torch.float64)
    if trial.start != INPUT:
        features_P = torch.randn(network.depth * x_ND.size, generator=generator, dtype=torch.float64)
        return trial.init_scale * torch.cat([features_P, random_KD.flatten()])
    weight_KD = trial.init_scale / network.dimension**0.5 * random_KD
    return torch.cat([*[torch.from_numpy(x_ND).flatten()] * network.depth, weight_KD.flatten()])


class _PathMeasurements:
    """Metrics of a pack's trials, layer by layer from X, with the monotonicity of the metrics."""

    def __init__(self, class_counts_K: np.ndarray):
        counts_K = torch.from_numpy(class_counts_K)

        def of_features(h_TND: Tensor) -> dict[str, Tensor]:
            counts_here_K = counts_K.to(h_TND.device)
            return class_collapse(h_TND, counts_here_K, class_means(h_TND.double(), counts_here_K))

        def of_weights(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
            return weight_alignment(h_TND, counts_K.to(h_TND.device), weight_TKD)

        self._of_layers = LayerMeasurements(of_features, of_weights)

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return one row per layer for each trial. The last row holds the monotonicity of the metrics over layers."""
        rows_of_trials = self._of_layers(trainer, positions, step)
        for position, rows in zip(positions, rows_of_trials, strict=True):
            x_1ND = _unit(trainer.untrained[INPUTS][position : position + 1].double())
            for row, h_1ND in zip(rows, trainer.features(position), strict=True):
                row["alignment"] = (_unit(h_1ND.double()) - x_1ND).norm().item()
            rows[-1] |= monotonicity(rows)
        return rows_of_trials


def _unit(h_TND: Tensor) -> Tensor:
    return h_TND / h_TND.norm()
