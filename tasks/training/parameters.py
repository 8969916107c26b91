"""The parameters of training that tasks share, declared once, and what follows from them. Importable without torch.

A task lists those it takes in its schema, in the order it likes; where its default is another one, it says so with
`dataclasses.replace(LR, default=0.5, doc=...)`.
"""

from __future__ import annotations

import itertools

from depthrate.tasks.schema import Parameter, ParameterError
from depthrate.tasks.task import Params
from depthrate.tasks.training.plan import learning_rate_factor

DEFAULT_STEPS = 12_000

LOSS = Parameter(name="loss", kind="str", choices=("ce", "mse"), default="ce", doc="cross-entropy or (1/2N)||f - Y||^2")
OPTIMIZER = Parameter(name="optimizer", kind="str", choices=("sgd", "adam"), default="sgd", doc="optimiser")
LR = Parameter(
    name="lr",
    kind="float",
    minimum=0,
    exclusive_minimum=True,
    nullable=True,
    default=None,
    fusible=True,
    doc="learning rate; null: 0.2 for sgd with ce, 0.02 for sgd with mse, 0.005 for adam",
)
MOMENTUM = Parameter(
    name="momentum",
    kind="float",
    minimum=0,
    maximum=1,
    default=0.9,
    fusible=True,
    doc="momentum of sgd (adam uses 0.9 and 0.999)",
)
SCHEDULE = Parameter(
    name="schedule",
    kind="str",
    choices=("constant", "step", "cosine"),
    default="cosine",
    doc="learning rate over time; step divides it by 10 at 1/3 and 2/3, cosine goes to 0",
)
STEPS = Parameter(
    name="steps",
    kind="int",
    minimum=1,
    nullable=True,
    default=None,
    doc=f"training steps; null: by epochs, or {DEFAULT_STEPS:,} when epochs is null too",
)
EPOCHS = Parameter(
    name="epochs",
    kind="int",
    minimum=1,
    nullable=True,
    default=None,
    doc="passes over the training set, instead of steps",
)
BATCH_SIZE = Parameter(
    name="batch_size",
    kind="int",
    minimum=1,
    nullable=True,
    default=None,
    doc="samples in a step, shuffled anew each epoch, an incomplete last batch left out; null: full batch",
)
CLIP_NORM = Parameter(
    name="clip_norm",
    kind="float",
    minimum=0,
    exclusive_minimum=True,
    nullable=True,
    default=None,
    doc="largest norm of a trial's gradient of the objective, decay included; null: no clipping",
)
INIT = Parameter(
    name="init",
    kind="str",
    choices=("uniform", "normal", "he"),
    default="uniform",
    doc="U(-1,1)/sqrt(fan_in) with biases, N(0, 1/fan_in), or N(0, 2/fan_in)",
)
DTYPE = Parameter(name="dtype", kind="str", choices=("float32", "float64"), default="float32", doc="of the training")
MATMUL_PRECISION = Parameter(
    name="matmul_precision",
    kind="str",
    choices=("full", "tf32", "bf16"),
    default="full",
    added=True,
    doc="of the matrix products of training steps, with dtype float32: full (its own), tf32 (on GPUs), or bf16; "
    "parameters, sums and all that is measured stay in float32, and steps with bf16 are never compiled",
)
SEED = Parameter(
    name="seed", kind="int", minimum=0, default=0, fusible=True, draw=True, doc="seed of initialisation and data order"
)
FEATURES = Parameter(
    name="features",
    kind="str",
    pattern="none|class_means|all|sample:[1-9][0-9]*",
    default="none",
    doc="features kept at the end, of every layer of width d: none, class_means, all, sample:<n per class>",
)
FEATURE_DTYPE = Parameter(
    name="feature_dtype",
    kind="str",
    choices=("float32", "float16"),
    default="float32",
    doc="of the kept features",
)
MEASURE_STEPS = Parameter(
    name="measure_steps",
    kind="list[int]",
    minimum=0,
    nullable=True,
    default=None,
    doc="steps measured besides the last; null: 0, 1, 2, 5, 10, 20, 50, ... and where the last quarters of steps and of the "
    "learning rate spent begin",
)
MEASURE_EPOCHS = Parameter(
    name="measure_epochs",
    kind="int",
    minimum=1,
    nullable=True,
    default=None,
    added=True,
    doc="epochs between two measurements, the start and the end measured too; instead of measure_steps",
)
MILESTONES = Parameter(
    name="milestones",
    kind="list[int]",
    minimum=1,
    nullable=True,
    default=None,
    added=True,
    doc="epochs at which schedule step divides the learning rate by 10; null: 1/3 and 2/3 of the steps",
)


def steps_per_epoch(params: Params, num_samples: int) -> int:
    """Return the number of steps of one epoch; an incomplete last batch is left out."""
    return max(1, num_samples // (params["batch_size"] or num_samples))


def milestone_steps(params: Params, num_samples: int) -> tuple[int, ...] | None:
    """Return the steps at which the learning rate falls; null where the trial names no epochs."""
    given = params.get("milestones")
    return None if given is None else tuple(steps_per_epoch(params, num_samples) * epoch for epoch in given)


def num_steps(params: Params, num_samples: int) -> int:
    """Return the number of training steps on a training set of so many samples."""
    if params["epochs"] is None:
        return params["steps"] or DEFAULT_STEPS
    return int(params["epochs"] * steps_per_epoch(params, num_samples))


def learning_rate(params: Params) -> float:
    """Return the learning rate, with the default of the optimiser and loss filled in."""
    if params["lr"] is not None:
        return float(params["lr"])
    if params["optimizer"] == "adam":
        return 0.005
    return 0.2 if params["loss"] == "ce" else 0.02


def log_spaced_steps(last: int) -> list[int]:
    """Return 0, 1, 2, 5, 10, 20, 50, ... below `last`, and `last`."""
    steps, decade = [0], 1
    while decade < last:
        steps += [factor * decade for factor in (1, 2, 5) if factor * decade < last]
        decade *= 10
    return [*steps, last]


def judged_steps(schedule: str, last: int) -> list[int]:
    """Return where the last quarter of the steps begins, and that of the learning rate spent: convergence is judged there."""
    grid = 1000
    spent = list(itertools.accumulate(learning_rate_factor(schedule, step, grid) for step in range(grid)))
    share = next(step for step, so_far in enumerate(spent, start=1) if so_far >= 0.75 * spent[-1]) / grid
    return sorted({round(0.75 * last), round(share * last)})


def measured_steps(params: Params, last: int) -> list[int]:
    """Return the steps up to `last` at which every layer is measured, the last among them."""
    if params.get("measure_epochs") is not None and params["epochs"] is not None:
        return sorted({*range(0, last, params["measure_epochs"] * (last // params["epochs"])), last})
    if params["measure_steps"] is None:
        return sorted({*log_spaced_steps(last), *judged_steps(params["schedule"], last)})
    return sorted({*(step for step in params["measure_steps"] if step < last), last})


def check_training(params: Params, num_samples: int) -> None:
    """Refuse training parameters that exclude each other, or do not fit a training set of so many samples.

    Raises:
        ParameterError: naming them.
    """
    if params["steps"] is not None and params["epochs"] is not None:
        raise ParameterError(f"steps is {params['steps']} and epochs is {params['epochs']}; give one of them")
    if params["batch_size"] is not None and params["batch_size"] > num_samples:
        raise ParameterError(
            f"batch_size is {params['batch_size']}, but the training set has {num_samples} samples; "
            "give at most that, or null for full batch"
        )
    _check_epochs(params)
    last = num_steps(params, num_samples)
    if params.get("matmul_precision", "full") != "full" and params["dtype"] != "float32":
        raise ParameterError(
            f"matmul_precision is {params['matmul_precision']} and dtype is {params['dtype']}; give dtype float32, or full"
        )
    late = [step for step in params["measure_steps"] or () if step > last]
    if late:
        raise ParameterError(f"measure_steps has {late[0]}, but training ends at step {last}")


def _check_epochs(params: Params) -> None:
    for name in ("measure_epochs", "milestones"):
        if params.get(name) is not None and params["epochs"] is None:
            raise ParameterError(f"{name} is {params[name]} and epochs is null; give epochs, in which it counts")
    if params.get("measure_epochs") is not None and params["measure_steps"] is not None:
        raise ParameterError(
            f"measure_epochs is {params['measure_epochs']} and measure_steps is {params['measure_steps']}; give one of them"
        )
    if params.get("milestones") is not None and params["schedule"] != "step":
        raise ParameterError(f"milestones is {params['milestones']} and schedule is {params['schedule']!r}; give step")
