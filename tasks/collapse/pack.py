"""The task `collapse`: what a pack of it trains on, and what it measures of every layer at log-spaced steps.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.collapse.schema import (
    context_length,
    draw_seed,
    network_of,
    objective_bound,
    objective_limit,
    vocabulary_size,
    weight_decays,
)
from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.measures.alignment import weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.geodesic import Geodesic, add_geodesic
from depthrate.tasks.measures.norms import row_norms, smallest_deviation, square_norms
from depthrate.tasks.measures.spectra import spectrum
from depthrate.tasks.networks.network import Tensors
from depthrate.tasks.task import Params, TaskContext, TrialResult
from depthrate.tasks.training.continuation import run_chain
from depthrate.tasks.training.layers import LayerMeasurements, defined
from depthrate.tasks.training.pack import run_training
from depthrate.tasks.training.parameters import learning_rate, milestone_steps
from depthrate.tasks.training.plan import EVALUATION_ROWS, Hyperparameters
from depthrate.tasks.training.polish_parameters import marked_steps, polish_plan, training_steps
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import OwnCurves, Training, training_plan


def run_pack(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack of trials of one shape; results come when the whole pack is done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    dataset = _load(trials[0], context)
    if trials[0]["continuation"]:
        yield from run_chain(trials, lambda at_one_depth: training_of(at_one_depth, dataset), context)
    else:
        yield from run_training(training_of(trials, dataset), context)


def training_of(trials: Sequence[Params], dataset: Dataset) -> Training:
    """Return what a pack of trials does with a data set, whoever provides it."""
    shared = trials[0]
    network = network_of(shared, dataset.shape)
    steps = training_steps(shared, len(dataset.x_NI))
    test, measure_test = dataset.test, None
    if test is not None:
        test = dataclasses.replace(test, x_NI=network.arranged(test.x_NI))
        measure_test = layer_measurements(
            test.class_counts_K, shared["rank_tol"], split="test", epsilon=_epsilon(shared)
        )
    return Training(
        network=network,
        dataset=dataclasses.replace(dataset, x_NI=network.arranged(dataset.x_NI), test=test),
        plan=training_plan(shared, steps, milestone_steps(shared, len(dataset.x_NI))),
        hyperparameters=[_hyperparameters(params) for params in trials],
        measured_steps=marked_steps(shared, len(dataset.x_NI)),
        polish=polish_plan(shared),
        measure=_Measurements(dataset.class_counts_K, shared),
        measure_test=measure_test,
        own_curves=_objective_gap(trials, dataset),
        kept=[(params["features"], params["feature_dtype"]) for params in trials],
    )


class _Measurements:
    """What is measured of trials: their layers, and beside the last of them the networks' weights."""

    def __init__(self, class_counts_K: np.ndarray, params: Params):
        self._of_layers = layer_measurements(class_counts_K, params["rank_tol"], epsilon=_epsilon(params))

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return of each trial one row a layer."""
        found = self._of_layers(trainer, positions, step)
        weights = {name: weight[list(positions)] for name, weight in trainer.parameters().items()}
        squares = square_norms(weights, {spec.name: spec.decay for spec in trainer.specs})
        sizes = {name: square_T.tolist() for name, square_T in squares.items()}
        last = trainer.network.last_weight
        norms = None if last is None else row_norms(weights[last]).tolist()
        for trial, (position, rows) in enumerate(zip(positions, found, strict=True)):
            own = {name: weight[trial : trial + 1] for name, weight in weights.items()}
            decays = trainer.hyperparameters[position].weight_decays
            costs = {f"regularisation_{name}": decays[name] / 2 * each[trial] for name, each in sizes.items()}
            hidden = sizes["hidden"][trial] if "hidden" in sizes else 0.0
            smallest = _smallest_deviation(trainer, own)
            rows[-1] |= defined({"hidden_square_norm": hidden, "smallest_deviation": smallest, **costs})
            rows[-1] |= {} if norms is None else {"row_norms": norms[trial]}
        return found


def _smallest_deviation(trainer: FusedTrainer, weights: Tensors) -> float | None:
    """Look at some samples of a trial at once: a transformer holds far more of each than its last position."""
    network, found = trainer.network, []
    with torch.no_grad():
        for part_NI in torch.split(trainer.x_NI, max(1, EVALUATION_ROWS // network.rows_per_sample)):
            smallest_T = smallest_deviation(network.norm_inputs(weights, part_NI.unsqueeze(0)))
            found += [] if smallest_T is None else [smallest_T.item()]
    return min(found, default=None)


def _epsilon(params: Params) -> float | None:
    """Return what `layer_measurements` is given: null where the geodesic is not asked for."""
    return params["epsilon"] if params["geodesic"] else None


def layer_measurements(
    class_counts_K: np.ndarray, rank_tol: float, *, split: str = "train", epsilon: float | None = None
) -> LayerMeasurements:
    """Return what is measured of a layer: the geometry of its classes, and how the last weight stands to them.

    With `epsilon` also how the path through the layers stands to the geodesic.
    """
    on_cpu_K = torch.from_numpy(class_counts_K)

    def of_features(h_TND: Tensor) -> dict[str, Tensor]:
        precision = h_TND.dtype
        counts_K, h_TND = on_cpu_K.to(h_TND.device), h_TND.double()
        means_TKD = class_means(h_TND, counts_K)
        return class_collapse(h_TND, counts_K, means_TKD) | spectrum(means_TKD, rank_tol, precision)

    def of_weights(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
        return weight_alignment(h_TND, on_cpu_K.to(h_TND.device), weight_TKD)

    def of_path(rows: Sequence[dict[str, Any]], ends: tuple[Tensor, Tensor], layers: Iterable[Tensor]) -> None:
        assert epsilon is not None
        line = Geodesic(*ends, on_cpu_K.to(ends[0].device))
        add_geodesic(rows, line, ends, layers, epsilon)

    return LayerMeasurements(of_features, of_weights, None if epsilon is None else of_path, split)


def _objective_gap(trials: Sequence[Params], dataset: Dataset) -> OwnCurves:
    """Return what adds to a row of curves the objective above its limit for infinite depth, and the theorem's bound on that:
    null where there is none."""
    num_classes = len(dataset.class_counts_K)
    limits = [objective_limit(params, num_classes) if dataset.is_balanced else None for params in trials]
    closest = dataset.closest_samples if any(limit is not None for limit in limits) else None
    bounds = [
        None if limit is None or closest is None else objective_bound(params, len(dataset.x_NI), closest)
        for limit, params in zip(limits, trials, strict=True)
    ]

    def gap(index: int, row: Mapping[str, float]) -> dict[str, float | None]:
        limit = limits[index]
        return {
            "objective_gap": None if limit is None else row["objective"] - limit,
            "objective_bound": bounds[index],
        }

    return gap


def _hyperparameters(params: Params) -> Hyperparameters:
    return Hyperparameters(
        seed=draw_seed(params),
        lr=learning_rate(params),
        momentum=params["momentum"],
        weight_decays=weight_decays(params),
    )


def _load(params: Params, context: TaskContext) -> Dataset:
    return load_dataset(
        params["dataset"],
        context.data,
        samples_per_class=params["samples_per_class"],
        data_seed=params["data_seed"],
        normalize=params["normalize"],
        context_length=context_length(params),
        vocabulary_size=vocabulary_size(params),
        dtype=params["dtype"],
        test=params["test"],
    )
