"""The tasks `ufm` and `mufm`: their parameters and what follows from them. Importable without torch."""

from __future__ import annotations

import dataclasses

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.mufm.inputs import GAUSSIAN
from depthrate.tasks.mufm.network import UnconstrainedLayers
from depthrate.tasks.schema import Parameter, ParameterError, ParameterSchema
from depthrate.tasks.task import Params
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.parameters import (
    DTYPE,
    FEATURE_DTYPE,
    FEATURES,
    LOSS,
    LR,
    MEASURE_STEPS,
    SCHEDULE,
    SEED,
    measured_steps,
)

DEFAULT_STEPS = 50_000
EXACT = "exact"
_OF_DESCENT = ("lr", "scaled_steps", "schedule", "steps", "init_scale", "measure_steps")
_IMAGES = tuple(name for name, info in PUBLISHED.items() if not info.is_text)

_PROXIMITY = Parameter(
    name="proximity",
    kind="float",
    minimum=0,
    exclusive_minimum=True,
    default=0.001,
    fusible=True,
    doc="lambda of (lambda/2N) sum_l ||H_l - H_{l-1}||^2 with H_0 = X",
)
_DEPTH = Parameter(
    name="depth", kind="int", minimum=1, default=1, doc="blocks L between the input X and the features that W reads"
)
_FEATURES_DECAY = Parameter(
    name="weight_decay_features",
    kind="float",
    minimum=0,
    exclusive_minimum=True,
    default=0.001,
    fusible=True,
    doc="lambda of (lambda/2N) ||H||^2",
)
_TRAINING = (
    dataclasses.replace(LOSS, default="mse"),
    Parameter(
        name="solver",
        kind="str",
        choices=(EXACT, "gradient"),
        default=EXACT,
        doc="the optimum itself, or full-batch gradient descent from H = X and a drawn W",
    ),
    dataclasses.replace(LR, nullable=False, default=0.1, doc="learning rate of gradient descent"),
    Parameter(
        name="scaled_steps",
        kind="bool",
        default=True,
        doc="steps of lr K n on features and lr K on W; false: of lr on both, as the objective is printed (P3)",
    ),
    dataclasses.replace(SCHEDULE, default="constant"),
    Parameter(
        name="steps",
        kind="int",
        minimum=1,
        nullable=True,
        default=None,
        doc=f"steps of gradient descent; null: {DEFAULT_STEPS:,}",
    ),
    Parameter(
        name="init_scale",
        kind="float",
        minimum=0,
        exclusive_minimum=True,
        default=1.0,
        fusible=True,
        doc="W starts as N(0, 1/d) times this",
    ),
)


def _schema(*own: Parameter) -> ParameterSchema:
    return ParameterSchema(
        [
            Parameter(name="num_classes", kind="int", minimum=2, default=5, doc="classes K"),
            Parameter(name="samples_per_class", kind="int", minimum=1, default=100, doc="samples n of each class"),
            Parameter(
                name="dimension", kind="int", minimum=2, default=20, doc="numbers d of an input and of a feature"
            ),
            *own,
            Parameter(
                name="weight_decay",
                kind="float",
                minimum=0,
                default=0.005,
                fusible=True,
                doc="lambda_W of (lambda_W/2K) ||W||^2",
            ),
            Parameter(
                name="data",
                kind="str",
                choices=(GAUSSIAN, *_IMAGES),
                default=GAUSSIAN,
                doc="X: N(mu_k, I) with mu_k uniform on the unit sphere, or the first classes of a data set along their first "
                "principal components, with mean square 1",
            ),
            Parameter(name="data_seed", kind="int", minimum=0, default=0, fusible=True, doc="seed of that draw"),
            *_TRAINING,
            dataclasses.replace(DTYPE, default="float64", doc="of gradient descent"),
            dataclasses.replace(SEED, doc="seed of W's start"),
            FEATURES,
            FEATURE_DTYPE,
            MEASURE_STEPS,
        ]
    )


UFM_SCHEMA, MUFM_SCHEMA = _schema(_FEATURES_DECAY), _schema(_DEPTH, _PROXIMITY)


def is_anchored(params: Params) -> bool:
    """Return whether features are held to X, as in MUFM."""
    return "proximity" in params


def proximity_of(params: Params) -> float:
    """Return lambda of the features' regulariser."""
    return float(params["proximity"] if is_anchored(params) else params["weight_decay_features"])


def depth_of(params: Params) -> int:
    """Return the number of blocks."""
    return int(params.get("depth", 1))


def steps_of(params: Params) -> int:
    """Return the number of steps of gradient descent; the exact solver takes none."""
    return 0 if params["solver"] == EXACT else params["steps"] or DEFAULT_STEPS


def network_of(params: Params) -> UnconstrainedLayers:
    """Return the model of one trial."""
    return UnconstrainedLayers(
        depth=depth_of(params),
        dimension=params["dimension"],
        num_samples=params["num_classes"] * params["samples_per_class"],
        num_classes=params["num_classes"],
    )


def pack_shape(params: Params) -> PackShape:
    """Return what the memory and the time of a pack of such trials depend on."""
    network, steps = network_of(params), steps_of(params)
    return PackShape(
        network=network,
        data=DataShape(num_samples=network.num_samples, sample_shape=(1,), num_classes=network.num_classes),
        batch_size=None,
        num_steps=steps or 1000,  # the exact solver takes as long as a thousand steps or so
        num_measured_steps=len(measured_steps(params, steps)) if steps else 1,
        optimizer="sgd",
        dtype=params["dtype"],
    )


def measured(params: Params, steps: int) -> tuple[list[int], list[int]]:
    """Return the (steps, layers) at which a trial that took so many steps was measured."""
    layers = [layer.number for layer in network_of(params).layers()]
    return measured_steps(params, steps) if steps else [0], layers


def check_trial(params: Params) -> None:
    """Refuse combinations that cannot run.

    Raises:
        ParameterError: naming the parameters that do not go together.
    """
    schema = MUFM_SCHEMA if is_anchored(params) else UFM_SCHEMA
    if params["solver"] == EXACT:
        for name in _OF_DESCENT:
            if params[name] != (default := schema[name].default):
                raise ParameterError(
                    f"{name} is {params[name]} and solver is 'exact', which takes no steps; leave {name} at {default}, or "
                    "give solver: gradient"
                )
    late = [step for step in params["measure_steps"] or () if step > steps_of(params)]
    if late:
        raise ParameterError(f"measure_steps has {late[0]}, but training ends at step {steps_of(params)}")
    if params["dimension"] < params["num_classes"]:
        raise ParameterError(
            f"dimension is {params['dimension']} and num_classes is {params['num_classes']}; the features of so many classes "
            f"need a dimension of at least {params['num_classes']}"
        )
    if params["data"] != GAUSSIAN:
        _check_data_set(params)


def _check_data_set(params: Params) -> None:
    info = PUBLISHED[params["data"]]
    shape = info.shape(samples_per_class=None, context_length=0, vocabulary_size=0, dtype="float64")
    most_dimensions = min(shape.num_inputs, params["num_classes"] * params["samples_per_class"])
    for name, most in (
        ("num_classes", info.num_classes),
        ("samples_per_class", info.smallest_class),
        ("dimension", most_dimensions),
    ):
        if params[name] > most:
            raise ParameterError(
                f"{name} is {params[name]}, but {params['data']!r} has {most} of them; give at most that"
            )
