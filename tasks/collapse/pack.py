"""The task `collapse`: what a pack of it trains on, and what it measures of every layer at log-spaced steps.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.collapse.schema import (
    context_length,
    network_of,
    objective_limit,
    vocabulary_size,
    weight_decays,
)
from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.measures.alignment import weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.spectra import spectrum
from depthrate.tasks.task import Params, TaskContext, TrialResult
from depthrate.tasks.training.continuation import run_chain
from depthrate.tasks.training.layers import LayerMeasurements
from depthrate.tasks.training.pack import OwnCurves, Training, run_training, training_plan
from depthrate.tasks.training.parameters import learning_rate
from depthrate.tasks.training.plan import Hyperparameters
from depthrate.tasks.training.polish_parameters import marked_steps, polish_plan, training_steps


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
    return Training(
        network=network,
        dataset=dataclasses.replace(dataset, x_NI=network.arranged(dataset.x_NI)),
        plan=training_plan(shared, steps),
        hyperparameters=[_hyperparameters(params) for params in trials],
        measured_steps=marked_steps(shared, len(dataset.x_NI)),
        polish=polish_plan(shared),
        measure=_measurements(dataset.class_counts_K, shared["rank_tol"]),
        own_curves=_objective_gap(trials, dataset),
        kept=[(params["features"], params["feature_dtype"]) for params in trials],
    )


def _measurements(class_counts_K: np.ndarray, rank_tol: float) -> LayerMeasurements:
    """Return what is measured of a layer: the geometry of its classes, and how the last weight stands to them."""
    on_cpu_K = torch.from_numpy(class_counts_K)

    def of_features(h_TND: Tensor) -> dict[str, Tensor]:
        counts_K, h_TND = on_cpu_K.to(h_TND.device), h_TND.double()
        means_TKD = class_means(h_TND, counts_K)
        return class_collapse(h_TND, counts_K, means_TKD) | spectrum(means_TKD, rank_tol)

    def of_weights(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
        return weight_alignment(h_TND, on_cpu_K.to(h_TND.device), weight_TKD)

    return LayerMeasurements(of_features, of_weights)


def _objective_gap(trials: Sequence[Params], dataset: Dataset) -> OwnCurves:
    """Return what adds to a row of curves the objective above its limit for infinite depth: null where there is none."""
    num_classes = len(dataset.class_counts_K)
    limits = [objective_limit(params, num_classes) if dataset.is_balanced else None for params in trials]

    def gap(index: int, row: Mapping[str, float]) -> dict[str, float | None]:
        limit = limits[index]
        return {"objective_gap": None if limit is None else row["objective"] - limit}

    return gap


def _hyperparameters(params: Params) -> Hyperparameters:
    return Hyperparameters(
        seed=params["seed"],
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
    )
