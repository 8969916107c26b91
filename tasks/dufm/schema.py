"""The task `dufm`: its parameters and what follows from them. Importable without torch."""

from __future__ import annotations

import dataclasses

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.dufm.network import FEATURES as FIRST_FEATURES
from depthrate.tasks.dufm.network import UnconstrainedFeatures
from depthrate.tasks.dufm.theory import Problem
from depthrate.tasks.schema import Parameter, ParameterSchema
from depthrate.tasks.task import Params
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.parameters import (
    DTYPE,
    FEATURE_DTYPE,
    FEATURES,
    LR,
    MEASURE_STEPS,
    SCHEDULE,
    SEED,
    measured_steps,
)

SCHEMA = ParameterSchema(
    [
        Parameter(name="depth", kind="int", minimum=1, doc="number L of weight matrices; ReLUs stand between them"),
        Parameter(name="num_classes", kind="int", minimum=2, doc="classes K"),
        Parameter(name="samples_per_class", kind="int", minimum=1, default=50, doc="samples n of each class"),
        Parameter(name="width", kind="int", minimum=1, default=64, doc="feature dimension d of every layer"),
        Parameter(
            name="activation",
            kind="str",
            choices=("relu", "none"),
            default="relu",
            doc="between the matrices; none: the linear model",
        ),
        Parameter(
            name="weight_decay",
            kind="float",
            minimum=0,
            default=0.004,
            fusible=True,
            doc="lambda of (lambda/2)||W_l||^2 for every l, and of H_1 where that has none of its own",
        ),
        Parameter(
            name="weight_decay_features",
            kind="float",
            minimum=0,
            nullable=True,
            default=None,
            fusible=True,
            doc="lambda_H of H_1; null: weight_decay",
        ),
        Parameter(
            name="weight_decays",
            kind="list[float]",
            minimum=0,
            nullable=True,
            default=None,
            fusible=True,
            doc="lambda_1 to lambda_L, one for each weight matrix; null: weight_decay for all",
        ),
        dataclasses.replace(LR, nullable=False, default=0.5, doc="learning rate of gradient descent"),
        dataclasses.replace(SCHEDULE, default="constant"),
        Parameter(name="steps", kind="int", minimum=1, default=40_000, doc="steps of full-batch gradient descent"),
        Parameter(
            name="init",
            kind="str",
            choices=("normal", "uniform", "he", "balanced", "dnc", "srg"),
            default="normal",
            fusible=True,
            doc="W of N(0, 1/d), U(-1,1)/sqrt(d) or N(0, 2/d) with H_1 of N(0, 1); balanced: all matrices with the same "
            "singular values; dnc, srg: at a closed form's solution",
        ),
        Parameter(
            name="init_scale",
            kind="float",
            minimum=0,
            exclusive_minimum=True,
            default=1.0,
            fusible=True,
            doc="factor on all matrices at the start",
        ),
        Parameter(
            name="init_noise",
            kind="float",
            minimum=0,
            default=0.0,
            fusible=True,
            doc="normal noise added at the start, over each matrix's root mean square",
        ),
        DTYPE,
        dataclasses.replace(SEED, doc="seed of the start"),
        FEATURES,
        FEATURE_DTYPE,
        MEASURE_STEPS,
        Parameter(
            name="rank_tol",
            kind="float",
            minimum=0,
            maximum=1,
            default=0.01,
            doc="singular values above this share of the largest count in rank",
        ),
    ]
)


def weight_decays(params: Params) -> dict[str, float]:
    """Return the weight decay of H_1 and of each weight, by name."""
    given, features = params["weight_decays"], params["weight_decay_features"]
    decays = [params["weight_decay"]] * params["depth"] if given is None else given
    of_weights = {f"W_{layer}": decay for layer, decay in enumerate(decays, 1)}
    return {FIRST_FEATURES: params["weight_decay"] if features is None else features, **of_weights}


def problem_of(params: Params) -> Problem:
    """Return what the closed forms of a trial depend on."""
    features, *weights = weight_decays(params).values()
    return Problem(params["num_classes"], params["samples_per_class"], tuple(weights), features)


def has_closed_forms(problem: Problem) -> bool:
    """Return whether all weight decays are above zero: without regularisation the best loss is 0, at no finite scale."""
    return min(problem.weight_decay_features, *problem.weight_decays) > 0


def network_of(params: Params) -> UnconstrainedFeatures:
    """Return the model of one trial."""
    return UnconstrainedFeatures(
        depth=params["depth"],
        width=params["width"],
        num_samples=params["num_classes"] * params["samples_per_class"],
        num_classes=params["num_classes"],
        relu=params["activation"] == "relu",
    )


def pack_shape(params: Params) -> PackShape:
    """Return what the memory and the time of a pack of such trials depend on."""
    network = network_of(params)
    return PackShape(
        network=network,
        data=DataShape(num_samples=network.num_samples, sample_shape=(1,), num_classes=network.num_classes),
        batch_size=None,
        num_steps=params["steps"],
        num_measured_steps=len(measured_steps(params, params["steps"])),
        optimizer="sgd",
        dtype=params["dtype"],
    )


def measured(params: Params, steps: int) -> tuple[list[int], list[int]]:
    """Return the (steps, layers) at which a trial that took so many steps was measured."""
    return measured_steps(params, steps), [layer.number for layer in network_of(params).layers()]
