"""The parameters of polish and of continuation in depth, and what follows from them. Importable without torch.

They came later than the tasks that take them: each default is what was before, so that committed trials stay the same ones.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Literal

from depthrate.tasks.parameters import ParameterError, parameter
from depthrate.tasks.training.parameters import (
    TrainingParameters,
    judged_steps,
    log_spaced_steps,
    measured_steps,
    num_steps,
)
from depthrate.tasks.training.training_plan import PolishPlan

Polish = Annotated[
    int,
    parameter(
        0,
        minimum=0,
        added_later=True,
        doc="after training, most evaluations of the objective for bringing the trial towards a stationary point, in float64 "
        "on the full batch (polish_solver); they count as steps. 0: none",
    ),
]
PolishTolerance = Annotated[
    float,
    parameter(
        1e-6,
        minimum=0,
        added_later=True,
        doc="gradient norm of the smoothed objective at which a trial is polished",
    ),
]
PolishSmoothing = Annotated[
    list[float],
    parameter(
        [0.1, 0.03, 0.01],
        above=0,
        added_later=True,
        doc="polish rounds ReLU's kink off over |z| below these widths in turn; what is measured has the true ReLU",
    ),
]
PolishMemory = Annotated[int, parameter(12, minimum=1, added_later=True, doc="pairs that L-BFGS remembers")]
PolishBarrier = Annotated[
    float,
    parameter(
        1e-6,
        minimum=0,
        added_later=True,
        doc="b of polish's barrier b mean(v/v_i), v_i the variances before the first LayerNorm and v their mean: without it "
        "one of them goes to 0, where LayerNorm is singular",
    ),
]
PolishTo = Annotated[
    Literal["lowest", "stationary"],
    parameter(
        "lowest",
        added_later=True,
        doc="lowest: each width of polish_smoothing has an equal share of the evaluations, and a trial ends with the lowest "
        "objective it saw. stationary: ReLU is (z + sqrt(z^2 + w^2))/2, w each of these widths in turn, polish_tolerance is a "
        "share of the objective, and a trial ends where its gradient is that small (stationary 1 in the curves) or the "
        "evaluations are used up (stationary 0)",
    ),
]
PolishSolver = Annotated[
    Literal["lbfgs", "newton_cg"],
    parameter(
        "lbfgs",
        added_later=True,
        doc="lbfgs: L-BFGS to the end. newton_cg: with polish_to stationary, once the gradient at the last width is the root "
        "of polish_tolerance times the objective, Newton's method takes over, in a trust region by conjugate gradients, whose "
        "products with the Hessian are differences of gradients",
    ),
]
Continuation = Annotated[
    list[int],
    parameter(
        [],
        minimum=1,
        added_later=True,
        doc="rising depths, this trial's among them: the first is trained and polished, each further one polished from the "
        "solution of the one before, with blocks inserted that change nothing; empty: the trial starts anew",
    ),
]
_POLISH_NAMES = (
    "polish_to",
    "polish_tolerance",
    "polish_smoothing",
    "polish_memory",
    "polish_barrier",
    "polish_solver",
    "continuation",
)


def polish_plan(trial: TrainingParameters) -> PolishPlan | None:
    """Return how a trial is polished; null where it is not."""
    if not trial.polish:
        return None
    return PolishPlan(
        num_evaluations=trial.polish,
        tolerance=trial.polish_tolerance,
        smoothing=tuple(trial.polish_smoothing),
        memory=trial.polish_memory,
        barrier=trial.polish_barrier,
        to_stationary=trial.polish_to == "stationary",
        newton=trial.polish_solver == "newton_cg",
    )


def chain(trial: TrainingParameters) -> list[int]:
    """Return the depths that a trial goes through, its own the last."""
    return [depth for depth in trial.continuation if depth < trial.depth] + [trial.depth]


def training_steps(trial: TrainingParameters, num_samples: int) -> int:
    """Return the steps of training before polish: none for a depth that starts from the solution of another."""
    return 0 if any(depth < trial.depth for depth in trial.continuation) else num_steps(trial, num_samples)


def marked_steps(trial: TrainingParameters, num_samples: int) -> list[int]:
    """Return the steps at which every layer is measured in a trial that uses its whole budget.

    Polish has log-spaced ones of its own, which begin with its start, and the begin of the last quarter of all steps; a list
    in `measure_steps` counts over both.
    """
    trained, budget = training_steps(trial, num_samples), trial.polish
    if not budget:
        return measured_steps(trial, trained)
    if trial.measure_steps is not None:
        return sorted({trained, *measured_steps(trial, trained + budget)})
    polish = (trained + step for step in log_spaced_steps(budget))
    return sorted({*log_spaced_steps(trained), *polish, *judged_steps("constant", trained + budget)})


def curve_steps(schedule: str, trained: int, budget: int) -> list[int]:
    """Return some eight steps a decade of training and of polish, and those at which convergence is judged.

    trained: steps of training. budget: evaluations of polish. The ends of both are among them.
    """
    steps = {*_eight_per_decade(trained), *log_spaced_steps(trained), *judged_steps(schedule, trained)}
    if budget:
        polish = {*_eight_per_decade(budget), *log_spaced_steps(budget), *range(0, budget, max(1, budget // 20))}
        steps |= {*(trained + step for step in polish), *judged_steps("constant", trained + budget)}
    return sorted(steps)


def _eight_per_decade(last: int) -> list[int]:
    exponents = range(int(8 * math.log10(last)) + 1) if last > 1 else range(last)
    return [0, last, *(round(10 ** (exponent / 8)) for exponent in exponents)]


def taken_steps(trial: TrainingParameters, num_samples: int, last: int) -> list[int]:
    """Return the steps at which a trial was measured that ended at step `last`."""
    return sorted({*(step for step in marked_steps(trial, num_samples) if step < last), last})


def check_polish(trial: TrainingParameters, *, is_deepenable: bool) -> None:
    """Refuse parameters of polish and continuation that mean nothing, and chains that cannot be gone through.

    Raises:
        ParameterError: naming them.
    """
    if not trial.polish:
        for name in _POLISH_NAMES:
            if getattr(trial, name) != trial.schema[name].default:
                raise ParameterError(
                    f"{name} is {getattr(trial, name)}, but polish is 0; give polish a number of evaluations"
                )
    if trial.polish_solver == "newton_cg" and trial.polish_to != "stationary":
        raise ParameterError(
            f"polish_solver is newton_cg, but polish_to is {trial.polish_to}: Newton's method is for a search that ends at a "
            "stationary point; give polish_to: stationary, or polish_solver: lbfgs"
        )
    if not trial.polish_smoothing:
        raise ParameterError("polish_smoothing is empty; give at least one width, such as [0.01]")
    depths = trial.continuation
    if not depths:
        return
    if not is_deepenable:
        raise ParameterError(
            f"continuation is {depths}, but for arch {trial.arch!r} no block is known that changes nothing; give []"
        )
    if any(low >= high for low, high in itertools.pairwise(depths)) or trial.depth not in depths:
        raise ParameterError(
            f"continuation is {depths} and depth is {trial.depth}; give rising depths with the trial's own among them"
        )
