"""The task `own`: what a pack of it trains on, and what it measures.

Shapes: T trials, N samples sorted by class, K classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from depthrate.tasks.collapse.pack import layer_measurements
from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.own.trial import OwnTrials
from depthrate.tasks.task import Params, TaskContext, TrialResult
from depthrate.tasks.training.pack import run_training
from depthrate.tasks.training.parameters import learning_rate, measured_steps, num_steps
from depthrate.tasks.training.plan import Hyperparameters
from depthrate.tasks.training.training import Training, training_plan


def run_pack(own: OwnTrials, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack of trials of one shape; results come when the whole pack is done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    yield from run_training(training_of(own, trials, own.load(trials[0], context.data)), context)


def training_of(own: OwnTrials, trials: Sequence[Params], dataset: Dataset) -> Training:
    """Return what a pack of trials does with a data set."""
    shared = trials[0]
    network = own.network(shared, dataset.shape)
    steps = num_steps(shared, len(dataset.x_NI))
    test = dataset.test
    if test is not None:
        test = dataclasses.replace(test, x_NI=network.arranged(test.x_NI))
    return Training(
        network=network,
        dataset=dataclasses.replace(dataset, x_NI=network.arranged(dataset.x_NI), test=test),
        plan=training_plan({"init": "", **shared}, steps),
        hyperparameters=[
            Hyperparameters(params["seed"], learning_rate(params), params["momentum"], own.weight_decays(params))
            for params in trials
        ],
        measured_steps=measured_steps(shared, steps),
        measure=layer_measurements(dataset.class_counts_K, shared["rank_tol"]),
        measure_test=None
        if test is None
        else layer_measurements(test.class_counts_K, shared["rank_tol"], split="test"),
        kept=[(params["features"], params["feature_dtype"]) for params in trials],
    )
