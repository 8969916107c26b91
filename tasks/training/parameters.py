"""Training parameters shared by tasks, and values derived from them. Importable without torch.

A task's class lists the parameters that it takes, in any order, as in `loss: Loss`, or with a different default, as in `dtype:
Dtype = parameter("float64")`.
"""

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Literal

from depthrate.tasks.parameters import ParameterError, Parameters, later_parameter, parameter
from depthrate.tasks.training.training_plan import learning_rate_factor

DEFAULT_STEPS = 12_000

Loss = Annotated[Literal["ce", "mse"], parameter("ce", doc="cross-entropy or (1/2N)||f - Y||^2")]
LabelSmoothing = Annotated[
    float,
    later_parameter(
        0.0,
        minimum=0,
        maximum=0.99,
        doc="label smoothing e: cross-entropy with (1 - e) of the label's one-hot row and e / K of each class, as in torch "
        "(Szegedy et al. 2016), also in the reported losses. Values above 0 train eagerly",
    ),
]
Optimizer = Annotated[
    Literal["sgd", "adam", "adamw", "rmsprop"],
    parameter(
        "sgd",
        doc="optimiser, with torch's update rule. adamw decays the parameters directly instead of through the gradient, so it "
        "does not descend the objective. adamw and rmsprop train eagerly",
    ),
]
LearningRate = Annotated[
    float | None,
    parameter(
        None,
        above=0,
        fusible=True,
        null="case when optimizer = 'rmsprop' then 0.001 when optimizer <> 'sgd' then 0.005 when loss = 'ce' then 0.2 "
        "else 0.02 end::double",
        doc="learning rate. null: 0.2 for sgd with ce, 0.02 for sgd with mse, 0.005 for adam and adamw, 0.001 for rmsprop",
    ),
]
Momentum = Annotated[
    float,
    parameter(0.9, minimum=0, maximum=1, fusible=True, doc="momentum of sgd and rmsprop (adam uses 0.9 and 0.999)"),
]
Schedule = Annotated[
    Literal["constant", "step", "cosine", "warmup_cosine", "one_cycle"],
    parameter(
        "cosine",
        doc="learning rate schedule. step divides by 10 at 1/3 and 2/3 of the steps, cosine falls to 0, warmup_cosine rises "
        "over the first 5 % of the steps and then falls to 0 as cosine does, one_cycle rises from lr/25 to lr over 30 % of the "
        "steps and falls to lr/250,000 (Smith & Topin 2018, torch's OneCycleLR)",
    ),
]
Steps = Annotated[
    int | None,
    parameter(None, minimum=1, doc=f"training steps. null: from epochs, or {DEFAULT_STEPS:,} if epochs is null too"),
]
Epochs = Annotated[int | None, parameter(None, minimum=1, doc="passes over the training set, instead of steps")]
BatchSize = Annotated[
    int | None,
    parameter(
        None,
        minimum=1,
        doc="samples per step, reshuffled every epoch, without an incomplete last batch. null: full batch",
    ),
]
ClipNorm = Annotated[
    float | None,
    parameter(
        None, above=0, doc="maximum norm of a trial's gradient of the objective, decay included. null: no clipping"
    ),
]
Init = Annotated[
    Literal["uniform", "normal", "he"],
    parameter("uniform", doc="initialisation: U(-1,1)/sqrt(fan_in) with biases, N(0, 1/fan_in), or N(0, 2/fan_in)"),
]
Dtype = Annotated[Literal["float32", "float64"], parameter("float32", doc="number type of training")]
MatmulPrecision = Annotated[
    Literal["full", "tf32", "bf16"],
    later_parameter(
        "full",
        doc="precision of matrix products in training steps: full (the dtype's), or with dtype float32 tf32 (GPUs only) or "
        "bf16. Parameters, sums and metrics stay in float32",
    ),
]
Seed = Annotated[
    int, parameter(0, minimum=0, fusible=True, is_random_seed=True, doc="seed of initialisation and data order")
]
Features = Annotated[
    str,
    parameter(
        "none",
        pattern="none|class_means|all|sample:[1-9][0-9]*",
        doc="features stored at the end, for every layer of the last one's width: none, class_means, all, sample:<n per class>",
    ),
]
FeatureDtype = Annotated[Literal["float32", "float16"], parameter("float32", doc="number type of stored features")]
MeasureSteps = Annotated[
    list[int] | None,
    parameter(
        None,
        minimum=0,
        doc="steps measured in addition to the last. null: 0, 1, 2, 5, 10, 20, 50, ... and the starts of the last quarter of "
        "the steps and of the summed learning rate, unless `record` omits some",
    ),
]
MeasureEpochs = Annotated[
    int | None,
    later_parameter(
        None,
        minimum=1,
        doc="epochs between two measurements, instead of measure_steps. The start and the end are measured too",
    ),
]
Record = Annotated[
    Literal["auto", "all"],
    later_parameter(
        "auto",
        doc="curve rows, and measurements without measure_steps. auto: as many as cost a sixth of the whole, counted in "
        "samples, and all with polish. all: eight rows per decade of steps, at any cost",
    ),
]
Milestones = Annotated[
    list[int] | None,
    later_parameter(
        None,
        minimum=1,
        doc="epochs at which schedule step divides the learning rate by 10. null: 1/3 and 2/3 of the steps",
    ),
]
RankTol = Annotated[
    float,
    parameter(0.01, minimum=0, maximum=1, doc="share of the largest singular value above which one counts in rank"),
]


class TrainingParameters(Parameters):
    """Parameters that training reads, with the values that apply if a task does not declare them."""

    arch: str
    loss: str = "ce"
    label_smoothing: float = 0.0
    optimizer: str = "sgd"
    lr: float | None = None
    momentum: float = 0.0
    schedule: str = "constant"
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    init: str = "normal"
    dtype: str = "float32"
    matmul_precision: str = "full"
    seed: int = 0
    features: str = "none"
    feature_dtype: str = "float32"
    measure_steps: list[int] | None = None
    measure_epochs: int | None = None
    record: str = "all"
    milestones: list[int] | None = None
    test: bool = False
    measure: str | None = None
    depth: int
    polish: int = 0
    polish_tolerance: float
    polish_to: str = "lowest"
    embedding_seed: int = 0
    polish_smoothing: list[float]
    polish_memory: int
    polish_solver: str = "lbfgs"
    polish_barrier: float
    continuation: Sequence[int] = ()
    parametrisation: str = "sp"

    @property
    def default_steps(self) -> int:
        """Training steps if neither steps nor epochs is set."""
        return DEFAULT_STEPS


def steps_per_epoch(trial: TrainingParameters, num_samples: int) -> int:
    """Return the number of steps per epoch, without an incomplete last batch."""
    return max(1, num_samples // (trial.batch_size or num_samples))


def milestone_steps(trial: TrainingParameters, num_samples: int) -> tuple[int, ...] | None:
    """Convert the parameter `milestones` from epochs to steps. Return None for None."""
    epochs = trial.milestones
    return None if epochs is None else tuple(steps_per_epoch(trial, num_samples) * epoch for epoch in epochs)


def num_steps(trial: TrainingParameters, num_samples: int) -> int:
    """Return the number of training steps on a training set of this size."""
    if trial.epochs is None:
        return trial.steps or trial.default_steps
    return int(trial.epochs * steps_per_epoch(trial, num_samples))


def learning_rate(trial: TrainingParameters) -> float:
    """Return the learning rate, by default the optimiser's and loss's."""
    if trial.lr is not None:
        return float(trial.lr)
    if trial.optimizer != "sgd":
        return 0.001 if trial.optimizer == "rmsprop" else 0.005
    return 0.2 if trial.loss == "ce" else 0.02


def log_spaced_steps(last: int) -> list[int]:
    """Return 0, 1, 2, 5, 10, 20, 50, ... below `last`, and `last`."""
    steps, decade = [0], 1
    while decade < last:
        steps += [factor * decade for factor in (1, 2, 5) if factor * decade < last]
        decade *= 10
    return [*steps, last]


def judged_steps(schedule: str, last: int) -> list[int]:
    """Return the steps from which convergence is judged: where the last quarters of the steps and of the summed rates start."""
    return sorted({round(0.75 * last), round(last_rate_quarter(schedule) * last)})


@cache
def last_rate_quarter(schedule: str) -> float:
    """Return where the last quarter of a schedule's summed learning rate starts, as a share of the steps."""
    grid = 1000
    sums = list(itertools.accumulate(learning_rate_factor(schedule, step, grid) for step in range(grid)))
    return next(step for step, partial_sum in enumerate(sums, start=1) if partial_sum >= 0.75 * sums[-1]) / grid


def measured_steps(trial: TrainingParameters, last: int) -> list[int]:
    """Return the steps up to and including `last` at which all layers are measured."""
    if trial.measure_epochs is not None and trial.epochs is not None:
        return sorted({*range(0, last, trial.measure_epochs * (last // trial.epochs)), last})
    if trial.measure_steps is None:
        return sorted({*log_spaced_steps(last), *judged_steps(trial.schedule, last)})
    return sorted({*(step for step in trial.measure_steps if step < last), last})


def check_training(trial: TrainingParameters, num_samples: int) -> None:
    """Check that training parameters do not conflict and that they fit a training set of this size.

    Raises:
        ParameterError: They conflict or do not fit.
    """
    if trial.steps is not None and trial.epochs is not None:
        raise ParameterError(f"steps is {trial.steps} and epochs is {trial.epochs}. Set only one of them.")
    if trial.batch_size is not None and trial.batch_size > num_samples:
        raise ParameterError(
            f"batch_size is {trial.batch_size}, but the training set has {num_samples} samples. Use at most {num_samples}, or "
            "null for full batch."
        )
    if trial.label_smoothing and (trial.loss != "ce" or trial.polish):
        conflict = f"loss is {trial.loss!r}" if trial.loss != "ce" else f"polish is {trial.polish}"
        raise ParameterError(
            f"label_smoothing is {trial.label_smoothing} and {conflict}. Set it to 0, or use loss ce and polish 0."
        )
    _check_epochs(trial)
    last = num_steps(trial, num_samples)
    if trial.matmul_precision != "full" and trial.dtype != "float32":
        raise ParameterError(
            f"matmul_precision is {trial.matmul_precision} and dtype is {trial.dtype}. Use dtype float32, or matmul_precision "
            "full."
        )
    late = [step for step in trial.measure_steps or () if step > last]
    if late:
        raise ParameterError(
            f"measure_steps has {late[0]}, but training ends at step {last}. Use steps up to {last}, or train for longer."
        )


def _check_epochs(trial: TrainingParameters) -> None:
    for name in ("measure_epochs", "milestones"):
        if getattr(trial, name) is not None and trial.epochs is None:
            raise ParameterError(
                f"{name} is {getattr(trial, name)} and epochs is null. Set epochs, because {name} counts epochs."
            )
    if trial.measure_epochs is not None and trial.measure_steps is not None:
        raise ParameterError(
            f"measure_epochs is {trial.measure_epochs} and measure_steps is {trial.measure_steps}. Set only one of them."
        )
    if trial.milestones is not None and trial.schedule != "step":
        raise ParameterError(f"milestones is {trial.milestones} and schedule is {trial.schedule!r}, expected 'step'")
