"""The parameters of polish and of continuation in depth, and what follows from them. Importable without torch.

They came later than the tasks that take them: each default is what was before, so that committed trials stay the same ones.
"""

from __future__ import annotations

import itertools
import math

from depthrate.tasks.schema import Parameter, ParameterError
from depthrate.tasks.task import Params
from depthrate.tasks.training.parameters import judged_steps, log_spaced_steps, measured_steps, num_steps
from depthrate.tasks.training.plan import PolishPlan

POLISH = Parameter(
    name="polish",
    kind="int",
    minimum=0,
    default=0,
    added=True,
    doc="after training, most evaluations of the objective for bringing the trial to a stationary point, by L-BFGS in "
    "float64 on the full batch; they count as steps. 0: none",
)
POLISH_TOLERANCE = Parameter(
    name="polish_tolerance",
    kind="float",
    minimum=0,
    default=1e-6,
    added=True,
    doc="gradient norm of the smoothed objective at which a trial is polished",
)
POLISH_SMOOTHING = Parameter(
    name="polish_smoothing",
    kind="list[float]",
    minimum=0,
    exclusive_minimum=True,
    default=[0.1, 0.03, 0.01],
    added=True,
    doc="polish rounds ReLU's kink off over |z| below these widths in turn; what is measured has the true ReLU",
)
POLISH_MEMORY = Parameter(
    name="polish_memory", kind="int", minimum=1, default=12, added=True, doc="pairs that L-BFGS remembers"
)
POLISH_BARRIER = Parameter(
    name="polish_barrier",
    kind="float",
    minimum=0,
    default=1e-6,
    added=True,
    doc="b of polish's barrier b mean(v/v_i), v_i the variances before the first LayerNorm and v their mean: without it one "
    "of them goes to 0, where LayerNorm is singular",
)
CONTINUATION = Parameter(
    name="continuation",
    kind="list[int]",
    minimum=1,
    default=[],
    added=True,
    doc="rising depths, this trial's among them: the first is trained and polished, each further one polished from the "
    "solution of the one before, with blocks inserted that change nothing; empty: the trial starts anew",
)
PARAMETERS = (POLISH, POLISH_TOLERANCE, POLISH_SMOOTHING, POLISH_MEMORY, POLISH_BARRIER, CONTINUATION)
"""In the order in which they stand in a schema."""


def polish_plan(params: Params) -> PolishPlan | None:
    """Return how a trial is polished; null where it is not."""
    if not params["polish"]:
        return None
    return PolishPlan(
        num_evaluations=params["polish"],
        tolerance=params["polish_tolerance"],
        smoothing=tuple(params["polish_smoothing"]),
        memory=params["polish_memory"],
        barrier=params["polish_barrier"],
    )


def chain(params: Params) -> list[int]:
    """Return the depths that a trial goes through, its own the last."""
    return [depth for depth in params["continuation"] if depth < params["depth"]] + [params["depth"]]


def training_steps(params: Params, num_samples: int) -> int:
    """Return the steps of training before polish: none for a depth that starts from the solution of another."""
    return 0 if len(chain(params)) > 1 else num_steps(params, num_samples)


def marked_steps(params: Params, num_samples: int) -> list[int]:
    """Return the steps at which every layer is measured in a trial that uses its whole budget.

    Polish has log-spaced ones of its own, which begin with its start, and the begin of the last quarter of all steps; a list
    in `measure_steps` counts over both.
    """
    trained, budget = training_steps(params, num_samples), params["polish"]
    if not budget:
        return measured_steps(params, trained)
    if params["measure_steps"] is not None:
        return sorted({trained, *measured_steps(params, trained + budget)})
    polish = (trained + step for step in log_spaced_steps(budget))
    return sorted({*log_spaced_steps(trained), *polish, *judged_steps("constant", trained + budget)})


def curve_steps(schedule: str, trained: int, budget: int) -> list[int]:
    """Return some eight steps a decade of training and of polish, and those at which convergence is judged.

    trained: steps of training. budget: evaluations of polish. The ends of both are among them.
    """
    steps = {*_eight_a_decade(trained), *log_spaced_steps(trained), *judged_steps(schedule, trained)}
    if budget:
        polish = {*_eight_a_decade(budget), *log_spaced_steps(budget), *range(0, budget, max(1, budget // 20))}
        steps |= {*(trained + step for step in polish), *judged_steps("constant", trained + budget)}
    return sorted(steps)


def _eight_a_decade(last: int) -> list[int]:
    exponents = range(int(8 * math.log10(last)) + 1) if last > 1 else range(last)
    return [0, last, *(round(10 ** (exponent / 8)) for exponent in exponents)]


def taken_steps(params: Params, num_samples: int, last: int) -> list[int]:
    """Return the steps at which a trial was measured that ended at step `last`."""
    return sorted({*(step for step in marked_steps(params, num_samples) if step < last), last})


def check_polish(params: Params, *, is_deepenable: bool) -> None:
    """Refuse parameters of polish and continuation that mean nothing, and chains that cannot be gone through.

    Raises:
        ParameterError: naming them.
    """
    if not params["polish"]:
        for parameter in PARAMETERS[1:]:
            if params[parameter.name] != parameter.default:
                raise ParameterError(
                    f"{parameter.name} is {params[parameter.name]}, but polish is 0; give polish a number of evaluations"
                )
    if not params["polish_smoothing"]:
        raise ParameterError("polish_smoothing is empty; give at least one width, such as [0.01]")
    depths = params["continuation"]
    if not depths:
        return
    if not is_deepenable:
        raise ParameterError(
            f"continuation is {depths}, but for arch {params['arch']!r} no block is known that changes nothing; give []"
        )
    if any(low >= high for low, high in itertools.pairwise(depths)) or params["depth"] not in depths:
        raise ParameterError(
            f"continuation is {depths} and depth is {params['depth']}; give rising depths with the trial's own among them"
        )
