"""The tasks `ufm` and `mufm`: what a pack of them solves or trains, and what it measures of every layer.

The exact solver is gradient descent that starts at the optimum and takes no step: what is measured, kept and drawn is the
same. Shapes: T trials, N samples sorted by class, D = dimension, K classes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.dataset import numbered_samples
from depthrate.tasks.measures.alignment import weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.progressive import monotonicity
from depthrate.tasks.mufm.descent import PROXIMITY, Descent, GradientDescent
from depthrate.tasks.mufm.exact import Array, Optimum, Problem, solve
from depthrate.tasks.mufm.inputs import inputs
from depthrate.tasks.mufm.network import INPUTS, WEIGHT, UnconstrainedLayers
from depthrate.tasks.mufm.schema import EXACT, depth_of, is_anchored, network_of, proximity_of, steps_of
from depthrate.tasks.mufm.theory import equivalent_proximity, ufm_optimum
from depthrate.tasks.task import Params, TaskContext, TrialResult
from depthrate.tasks.training.layers import LayerMeasurements
from depthrate.tasks.training.pack import run_training
from depthrate.tasks.training.parameters import measured_steps
from depthrate.tasks.training.plan import Hyperparameters, TrainingPlan
from depthrate.tasks.training.trainer import FusedTrainer, stream
from depthrate.tasks.training.training import OwnCurves, Training


def run_pack(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Solve or train, and measure, a pack of trials of one shape; results come when the whole pack is done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    yield from run_training(training_of(trials, [inputs(params, context.data) for params in trials]), context)


def training_of(trials: Sequence[Params], inputs_of_trials: Sequence[Array]) -> Training:
    """Return what a pack of trials does with their inputs, each [N, D]."""
    shared, network = trials[0], network_of(trials[0])
    optima = [_optimum(params, x_ND) for params, x_ND in zip(trials, inputs_of_trials, strict=True)]
    starts = [_start(network, *each) for each in zip(trials, inputs_of_trials, optima, strict=True)]
    steps = steps_of(shared)
    make = functools.partial(
        GradientDescent,
        descent=Descent(anchored=is_anchored(shared), scaled_steps=shared["scaled_steps"]),
        inputs_TND=torch.from_numpy(np.stack(inputs_of_trials)),
        start_TP=torch.stack(starts),
    )
    dataset = numbered_samples(network.num_classes, network.num_samples)
    return Training(
        network=network,
        dataset=dataset,
        plan=_plan(shared, steps),
        hyperparameters=[
            Hyperparameters(
                seed=params["seed"],
                lr=params["lr"],
                momentum=0.0,
                weight_decays={WEIGHT: params["weight_decay"], PROXIMITY: proximity_of(params)},
            )
            for params in trials
        ],
        measured_steps=measured_steps(shared, steps) if steps else [0],
        measure=_PathMeasurements(dataset.class_counts_K),
        own_curves=_gaps([_lowest(params, optimum) for params, optimum in zip(trials, optima, strict=True)]),
        kept=[(params["features"], params["feature_dtype"]) for params in trials],
        trainer=make,
    )


def _plan(params: Params, steps: int) -> TrainingPlan:
    return TrainingPlan(
        loss=params["loss"],
        optimizer="sgd",
        schedule=params["schedule"],
        num_steps=steps,
        batch_size=None,
        init="normal",
        clip_norm=None,
        dtype=getattr(torch, params["dtype"]),
    )


def _optimum(params: Params, x_ND: Array) -> Optimum:
    labels_N = np.repeat(np.arange(params["num_classes"]), params["samples_per_class"])
    problem = Problem(
        target_ND=x_ND if is_anchored(params) else np.zeros_like(x_ND),
        labels_N=labels_N,
        num_classes=params["num_classes"],
        weight_decay=params["weight_decay"],
        proximity=equivalent_proximity(proximity_of(params), depth_of(params)),
    )
    return solve(problem, params["loss"], np.random.default_rng(params["seed"]))


def _lowest(params: Params, optimum: Optimum) -> float:
    """Return the lowest objective: the closed form of UFM, the exact solver's of MUFM."""
    if is_anchored(params):
        return optimum.objective
    return ufm_optimum(
        params["loss"],
        num_classes=params["num_classes"],
        weight_decay=params["weight_decay"],
        weight_decay_features=params["weight_decay_features"],
    )


def _start(network: UnconstrainedLayers, params: Params, x_ND: Array, optimum: Optimum) -> Tensor:
    """Return where a trial starts, flat: at the optimum, features evenly between X and H; or at H = X with a drawn W."""
    if params["solver"] == EXACT:
        shares = [layer / network.depth for layer in range(1, network.depth + 1)]
        features = [x_ND + share * (optimum.h_ND - x_ND) for share in shares]
        return torch.from_numpy(np.concatenate([array.ravel() for array in (*features, optimum.weight_KD)]))
    shape = (network.num_classes, network.dimension)
    drawn_KD = torch.randn(shape, generator=stream(params["seed"], "init"), dtype=torch.float64)
    weight_KD = params["init_scale"] / network.dimension**0.5 * drawn_KD
    return torch.cat([*[torch.from_numpy(x_ND).flatten()] * network.depth, weight_KD.flatten()])


def _gaps(lowest: Sequence[float]) -> OwnCurves:
    """Return what adds to a row of curves the exact optimum, and the objective above it."""

    def gap(index: int, row: Mapping[str, float]) -> dict[str, float | None]:
        return {"objective_gap": row["objective"] - lowest[index], "optimum": lowest[index]}

    return gap


class _PathMeasurements:
    """Measures trials of a pack, layer by layer from X on, and whether the metrics are monotone."""

    def __init__(self, class_counts_K: np.ndarray):
        counts_K = torch.from_numpy(class_counts_K)

        def of_features(h_TND: Tensor) -> dict[str, Tensor]:
            own_K = counts_K.to(h_TND.device)
            return class_collapse(h_TND, own_K, class_means(h_TND.double(), own_K))

        def of_weights(h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
            return weight_alignment(h_TND, counts_K.to(h_TND.device), weight_TKD)

        self._of_layers = LayerMeasurements(of_features, of_weights)

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return of each trial one row a layer; the last one says whether the metrics were monotone on the way."""
        found = self._of_layers(trainer, positions, step)
        for position, rows in zip(positions, found, strict=True):
            x_1ND = _unit(trainer.untrained[INPUTS][position : position + 1].double())
            for row, h_1ND in zip(rows, trainer.features(position), strict=True):
                row["alignment"] = (_unit(h_1ND.double()) - x_1ND).norm().item()
            rows[-1] |= monotonicity(rows)
        return found


def _unit(h_TND: Tensor) -> Tensor:
    return h_TND / h_TND.norm()
