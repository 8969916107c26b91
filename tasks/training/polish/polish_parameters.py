"""Values derived from the parameters of polish and of continuation in depth, and their checks. Importable without torch."""

import itertools
import math

from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.parameters import (
    TrainingParameters,
    judged_steps,
    log_spaced_steps,
    measured_steps,
    num_steps,
)
from depthrate.tasks.training.training_plan import PolishPlan

_POLISH_NAMES = (
    *("polish_to", "polish_tolerance", "polish_smoothing", "polish_memory", "polish_barrier", "polish_solver"),
    "continuation",
)


def polish_plan(trial: TrainingParameters) -> PolishPlan | None:
    """Return a trial's plan of polish, or None without polish."""
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
    """Return the depths of a trial's chain, which ends with its depth."""
    return [depth for depth in trial.continuation if depth < trial.depth] + [trial.depth]


def training_steps(trial: TrainingParameters, num_samples: int) -> int:
    """Return the number of training steps before polish, which is 0 for a depth that starts from another depth's solution."""
    return 0 if any(depth < trial.depth for depth in trial.continuation) else num_steps(trial, num_samples)


def marked_steps(trial: TrainingParameters, num_samples: int) -> list[int]:
    """Return the steps at which all layers are measured in a trial that uses its whole budget, if none is omitted.

    Polish adds log-spaced steps counted from its start, and the start of the last quarter of all steps. A list in
    `measure_steps` applies to training and polish together.
    """
    trained, budget = training_steps(trial, num_samples), trial.polish
    if not budget:
        return measured_steps(trial, trained)
    if trial.measure_steps is not None:
        return sorted({trained, *measured_steps(trial, trained + budget)})
    polish = (trained + step for step in log_spaced_steps(budget))
    return sorted({*log_spaced_steps(trained), *polish, *judged_steps("constant", trained + budget)})


def curve_steps(schedule: str, trained: int, budget: int) -> list[int]:
    """Return the steps with curve rows if none is omitted: about eight per decade, those that judge convergence, and both ends.

    Args:
        schedule: Learning rate schedule.
        trained: Number of training steps.
        budget: Maximum evaluations of polish.
    """
    steps = {*_eight_per_decade(trained), *log_spaced_steps(trained), *judged_steps(schedule, trained)}
    if budget:
        polish = {*_eight_per_decade(budget), *log_spaced_steps(budget), *range(0, budget, max(1, budget // 20))}
        steps |= {*(trained + step for step in polish), *judged_steps("constant", trained + budget)}
    return sorted(steps)


def _eight_per_decade(last: int) -> list[int]:
    exponents = range(int(8 * math.log10(last)) + 1) if last > 1 else range(last)
    return [0, last, *(round(10 ** (exponent / 8)) for exponent in exponents)]


def check_polish(trial: TrainingParameters, *, is_deepenable: bool) -> None:
    """Check that the parameters of polish and continuation have an effect, and that the chain of depths is valid.

    Raises:
        ParameterError: A parameter has no effect, or the chain is invalid.
    """
    if not trial.polish:
        for name in _POLISH_NAMES:
            if getattr(trial, name) != trial.schema[name].default:
                raise ParameterError(
                    f"{name} is {getattr(trial, name)}, but polish is 0. Set polish to a number of evaluations."
                )
    if trial.polish_solver == "newton_cg" and trial.polish_to != "stationary":
        raise ParameterError(
            f"polish_solver is newton_cg, but polish_to is {trial.polish_to}. Newton's method needs polish_to: stationary. Set "
            "it, or use polish_solver: lbfgs."
        )
    if not trial.polish_smoothing:
        raise ParameterError("polish_smoothing is empty, expected at least one width, such as [0.01]")
    depths = trial.continuation
    if not depths:
        return
    if not is_deepenable:
        raise ParameterError(
            f"continuation is {depths}, but arch {trial.arch!r} has no neutral block to insert. Use []."
        )
    if trial.parametrisation != "sp":
        raise ParameterError(
            f"continuation is {depths} and parametrisation is {trial.parametrisation!r}, whose branches depend on depth. Use "
            "[], or 'sp'."
        )
    if any(low >= high for low, high in itertools.pairwise(depths)) or trial.depth not in depths:
        raise ParameterError(
            f"continuation is {depths} and depth is {trial.depth}, expected increasing depths that include depth"
        )
