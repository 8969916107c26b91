"""The parameters of training that tasks share, declared once, and what follows from them. Importable without torch.

A task lists those it takes in its class, in the order it likes, as in `loss: Loss`; where its default is another one, as in
`dtype: Dtype = parameter("float64")`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Literal

from depthrate.tasks.parameters import ParameterError, Parameters, parameter
from depthrate.tasks.training.training_plan import learning_rate_factor

DEFAULT_STEPS = 12_000

Loss = Annotated[Literal["ce", "mse"], parameter("ce", doc="cross-entropy or (1/2N)||f - Y||^2")]
LabelSmoothing = Annotated[
    float,
    parameter(
        0.0,
        minimum=0,
        maximum=0.99,
        added_later=True,
        doc="e of cross-entropy with (1 - e) of the label's one-hot row and e / K of each class, as in torch (Szegedy et al. "
        "2016); in the loss that is reported too, of both splits; other than 0 trains eagerly",
    ),
]
Optimizer = Annotated[
    Literal["sgd", "adam", "adamw", "rmsprop"],
    parameter(
        "sgd",
        doc="optimiser, its update that of torch; adamw decays the parameters themselves and not by the gradient, so that the "
        "objective is not what it descends; adamw and rmsprop train eagerly",
    ),
]
LearningRate = Annotated[
    float | None,
    parameter(
        None,
        above=0,
        fusible=True,
        doc="learning rate; null: 0.2 for sgd with ce, 0.02 for sgd with mse, 0.005 for adam and adamw, 0.001 for rmsprop",
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
        doc="learning rate over time; step divides it by 10 at 1/3 and 2/3, cosine goes to 0, warmup_cosine rises over a first "
        "twentieth of the steps and then goes to 0 as cosine does, one_cycle rises from lr/25 to lr over 30 % of the steps and "
        "falls to lr/250,000 (Smith & Topin 2018, torch's OneCycleLR)",
    ),
]
Steps = Annotated[
    int | None,
    parameter(None, minimum=1, doc=f"training steps; null: by epochs, or {DEFAULT_STEPS:,} when epochs is null too"),
]
Epochs = Annotated[int | None, parameter(None, minimum=1, doc="passes over the training set, instead of steps")]
BatchSize = Annotated[
    int | None,
    parameter(
        None,
        minimum=1,
        doc="samples in a step, shuffled anew each epoch, an incomplete last batch left out; null: full batch",
    ),
]
ClipNorm = Annotated[
    float | None,
    parameter(
        None, above=0, doc="largest norm of a trial's gradient of the objective, decay included; null: no clipping"
    ),
]
Init = Annotated[
    Literal["uniform", "normal", "he"],
    parameter("uniform", doc="U(-1,1)/sqrt(fan_in) with biases, N(0, 1/fan_in), or N(0, 2/fan_in)"),
]
Dtype = Annotated[Literal["float32", "float64"], parameter("float32", doc="of the training")]
MatmulPrecision = Annotated[
    Literal["full", "tf32", "bf16"],
    parameter(
        "full",
        added_later=True,
        doc="of the matrix products of training steps, with dtype float32: full (its own), tf32 (on GPUs), or bf16; "
        "parameters, sums and all that is measured stay in float32, and steps with bf16 are never compiled",
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
        doc="features kept at the end, of every layer of width d: none, class_means, all, sample:<n per class>",
    ),
]
FeatureDtype = Annotated[Literal["float32", "float16"], parameter("float32", doc="of the kept features")]
MeasureSteps = Annotated[
    list[int] | None,
    parameter(
        None,
        minimum=0,
        doc="steps measured besides the last; null: 0, 1, 2, 5, 10, 20, 50, ... and where the last quarters of steps and of "
        "the learning rate spent begin",
    ),
]
MeasureEpochs = Annotated[
    int | None,
    parameter(
        None,
        minimum=1,
        added_later=True,
        doc="epochs between two measurements, the start and the end measured too; instead of measure_steps",
    ),
]
Milestones = Annotated[
    list[int] | None,
    parameter(
        None,
        minimum=1,
        added_later=True,
        doc="epochs at which schedule step divides the learning rate by 10; null: 1/3 and 2/3 of the steps",
    ),
]
RankTol = Annotated[
    float,
    parameter(0.01, minimum=0, maximum=1, doc="singular values above this share of the largest count in rank"),
]


class TrainingParameters(Parameters):
    """What training reads of a trial: a task that does not take one of these has it at what stands here."""

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
    milestones: list[int] | None = None
    test: bool = False
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

    @property
    def default_steps(self) -> int:
        """Steps where neither they nor epochs are given."""
        return DEFAULT_STEPS


def steps_per_epoch(trial: TrainingParameters, num_samples: int) -> int:
    """Return the number of steps of one epoch; an incomplete last batch is left out."""
    return max(1, num_samples // (trial.batch_size or num_samples))


def milestone_steps(trial: TrainingParameters, num_samples: int) -> tuple[int, ...] | None:
    """Return the steps at which the learning rate falls; null where the trial names no epochs."""
    given = trial.milestones
    return None if given is None else tuple(steps_per_epoch(trial, num_samples) * epoch for epoch in given)


def num_steps(trial: TrainingParameters, num_samples: int) -> int:
    """Return the number of training steps on a training set of so many samples."""
    if trial.epochs is None:
        return trial.steps or trial.default_steps
    return int(trial.epochs * steps_per_epoch(trial, num_samples))


def learning_rate(trial: TrainingParameters) -> float:
    """Return the learning rate, with the default of the optimiser and loss filled in."""
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
    """Return where the last quarter of the steps begins, and that of the learning rate spent: convergence is judged there."""
    grid = 1000
    spent = list(itertools.accumulate(learning_rate_factor(schedule, step, grid) for step in range(grid)))
    share = next(step for step, so_far in enumerate(spent, start=1) if so_far >= 0.75 * spent[-1]) / grid
    return sorted({round(0.75 * last), round(share * last)})


def measured_steps(trial: TrainingParameters, last: int) -> list[int]:
    """Return the steps up to `last` at which every layer is measured, the last among them."""
    if trial.measure_epochs is not None and trial.epochs is not None:
        return sorted({*range(0, last, trial.measure_epochs * (last // trial.epochs)), last})
    if trial.measure_steps is None:
        return sorted({*log_spaced_steps(last), *judged_steps(trial.schedule, last)})
    return sorted({*(step for step in trial.measure_steps if step < last), last})


def check_training(trial: TrainingParameters, num_samples: int) -> None:
    """Refuse training parameters that exclude each other, or do not fit a training set of so many samples.

    Raises:
        ParameterError: naming them.
    """
    if trial.steps is not None and trial.epochs is not None:
        raise ParameterError(f"steps is {trial.steps} and epochs is {trial.epochs}; give one of them")
    if trial.batch_size is not None and trial.batch_size > num_samples:
        raise ParameterError(
            f"batch_size is {trial.batch_size}, but the training set has {num_samples} samples; "
            "give at most that, or null for full batch"
        )
    if trial.label_smoothing and (trial.loss != "ce" or trial.polish):
        what = f"loss is {trial.loss!r}" if trial.loss != "ce" else f"polish is {trial.polish}"
        raise ParameterError(f"label_smoothing is {trial.label_smoothing} and {what}; give 0, or loss ce and polish 0")
    _check_epochs(trial)
    last = num_steps(trial, num_samples)
    if trial.matmul_precision != "full" and trial.dtype != "float32":
        raise ParameterError(
            f"matmul_precision is {trial.matmul_precision} and dtype is {trial.dtype}; give dtype float32, or full"
        )
    late = [step for step in trial.measure_steps or () if step > last]
    if late:
        raise ParameterError(
            f"measure_steps has {late[0]}, but training ends at step {last}; give steps up to that, or train for more steps "
            "or epochs"
        )


def _check_epochs(trial: TrainingParameters) -> None:
    for name in ("measure_epochs", "milestones"):
        if getattr(trial, name) is not None and trial.epochs is None:
            raise ParameterError(
                f"{name} is {getattr(trial, name)} and epochs is null; give epochs, in which it counts"
            )
    if trial.measure_epochs is not None and trial.measure_steps is not None:
        raise ParameterError(
            f"measure_epochs is {trial.measure_epochs} and measure_steps is {trial.measure_steps}; give one of them"
        )
    if trial.milestones is not None and trial.schedule != "step":
        raise ParameterError(f"milestones is {trial.milestones} and schedule is {trial.schedule!r}; give step")
