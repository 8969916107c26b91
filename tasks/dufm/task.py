"""The task `dufm`: its checks, and all of it put together. Importable without torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from depthrate.tasks.dufm.closed_forms import best_known
from depthrate.tasks.dufm.measurements import MEASUREMENTS
from depthrate.tasks.dufm.schema import SCHEMA, has_closed_forms, measured, pack_shape, problem_of
from depthrate.tasks.dufm.theory import ZERO_LOSS, triangular_classes, triangular_root
from depthrate.tasks.schema import ParameterError
from depthrate.tasks.task import Params, Task, TaskContext, TrialResult
from depthrate.tasks.training.cost import estimate_s, max_pack_size
from depthrate.tasks.training.memory import memory_bytes

_WIDE = ("balanced", "dnc", "srg")
"""Starts with a dimension for each class."""


def check_trial(params: Params) -> None:
    """Refuse combinations that cannot run.

    Raises:
        ParameterError: naming the parameters that do not go together.
    """
    given, depth, classes, init = params["weight_decays"], params["depth"], params["num_classes"], params["init"]
    if given is not None and len(given) != depth:
        raise ParameterError(f"weight_decays has {len(given)} numbers, depth is {depth}; give one for each matrix")
    late = [step for step in params["measure_steps"] or () if step > params["steps"]]
    if late:
        raise ParameterError(f"measure_steps has {late[0]}, but training ends at step {params['steps']}")
    if init in _WIDE and params["width"] < classes:
        raise ParameterError(
            f"init is {init!r} and width is {params['width']}; with {classes} classes give a width of at least {classes}"
        )
    if init in ("dnc", "srg") and not has_closed_forms(problem_of(params)):
        raise ParameterError(f"init is {init!r}, which needs weight decays above 0; there is one of 0")
    if init == "srg":
        _check_graph(params)


def _check_graph(params: Params) -> None:
    classes, depth = params["num_classes"], params["depth"]
    if triangular_root(classes) is None:
        raise ParameterError(
            f"init is 'srg' and num_classes is {classes}; the strongly regular graph exists for r(r-1)/2 classes from 6 on: "
            f"{triangular_classes(classes)}, ..."
        )
    if depth < 3 or params["activation"] == "none":
        raise ParameterError(
            f"init is 'srg', depth is {depth} and activation is {params['activation']!r}; the strongly regular graph's "
            "solution needs a depth of at least 3 and activation relu"
        )


def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack; torch is imported here and not before."""
    from depthrate.tasks.dufm.pack import run_pack

    for trial_id, params in zip(context.trial_ids, trials, strict=True):
        _warn_of_zero(trial_id, params)
    yield from run_pack(trials, context)


def _warn_of_zero(trial_id: str, params: Params) -> None:
    """Say where no closed form beats the zero solution: with so much regularisation all matrices may go to zero."""
    problem = problem_of(params)
    if not has_closed_forms(problem) or best_known(problem, relu=params["activation"] == "relu") < ZERO_LOSS * (
        1 - 1e-9
    ):
        return
    logging.getLogger(__name__).warning(
        "trial %s: with the weight decays %s of W_1 to W_L and %g of H_1, and %d samples a class, the zero solution "
        "(objective %g) is the best closed form; give smaller ones to see another",
        trial_id,
        list(problem.weight_decays),
        problem.weight_decay_features,
        problem.samples_per_class,
        ZERO_LOSS,
    )


DUFM = Task(
    name="dufm",
    version=1,
    schema=SCHEMA,
    run=run,
    fused=True,
    doc="Train the deep unconstrained features model, and compare the solution it finds with two closed forms.",
    measurements=MEASUREMENTS,
    check_trial=check_trial,
    max_pack_size=lambda params, device: max_pack_size(pack_shape(params), device),
    measured=measured,
    memory_bytes=lambda params, num_trials, device: memory_bytes(pack_shape(params), num_trials, device),
    estimate_s=lambda params: estimate_s(pack_shape(params)),
)
