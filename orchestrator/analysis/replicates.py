"""Group a curve's trials into replicates, the units of resampling of its interval."""

import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Any

from depthrate.grouping import grouped
from depthrate.storage.tables.custom_columns import quoted, quoted_text
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial, canonical_json
from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import OncePerObject

SCOPE = "seed_scope"
"""Parameter that determines whether the trials of a seed share random numbers (`seed`) or not (`trial`)."""
CHAIN = "continuation"
"""Parameter with the depths of a chain."""


def replicate_of(request: FitRequest, params: Mapping[str, Any]) -> Any:
    """Return the replicate of a trial, or None if every trial is its own replicate."""
    # each depth of a chain starts where the previous one ended, so the chain is one replicate whatever its scope
    if request.over == FitRequest.SEED and params.get(SCOPE) == "trial" and not params.get(CHAIN):
        return None
    return params.get(request.over)


def replicate_keys(rows: Sequence[Mapping[str, Any]]) -> list[Hashable] | None:
    """Return the replicate of each value, or None if every value is its own replicate."""
    keys = [row.get("draw") for row in rows]
    return None if not keys or any(key is None for key in keys) else keys


def random_seeds(task: Task | None) -> list[str]:
    """Return a task's parameters that seed random numbers."""
    return [] if task is None else [name for name, parameter in task.schema.items() if parameter.is_random_seed]


def interval_text(request: FitRequest, trials: Sequence[Mapping[str, Any]], seed_names: Iterable[str]) -> str:
    """Describe the replicates of an interval and other random parameters of the trials.

    Settings with several values in one replicate at one x are named too: the curve averages over them.

    Args:
        seed_names: Parameters that seed random numbers.
    Returns:
        Description, empty if each trial is its own replicate.
    """
    replicates = {replicate_of(request, params) for params in trials}
    if not replicates or None in replicates:
        return ""
    text = _counted(request.over, len(replicates))
    as_json = OncePerObject(canonical_json)
    for name in dict.fromkeys([*seed_names, *_mixed(request, trials)]):
        values = {as_json(params[name]) for params in trials if name in params}
        if name == request.over or name in request.by or len(values) < 2:
            continue
        if len({(params[request.over], as_json(params[name])) for params in trials}) == len(replicates):
            text += f", each with its own {name}"
        else:
            text += f", at the {_counted(name, len(values))} used"
    return text


def refuse_mixture(request: FitRequest, trials: Sequence[Trial], may_differ: Set[str]) -> None:
    """Check that no group of a fit mixes versions of the task, or values of a parameter that must not differ.

    Raises:
        SweepError: One does. The message has a filter that divides it.
    """
    allowed = {*may_differ, *request.x_names, *request.by, request.over}
    for group in grouped(trials, lambda trial: canonical_json([trial.params[name] for name in request.by])).values():
        names = {name for trial in group for name in trial.params if name not in allowed}
        texts = {name: [_condition(name, trial.params.get(name)) for trial in group] for name in sorted(names)}
        by_version = "trial_id in (select trial_id from trials where task_version = {})"
        texts["task_version"] = [by_version.format(trial.task_version) for trial in group]
        if differing := {name: conditions for name, conditions in texts.items() if len(set(conditions)) > 1}:
            first = " and ".join(conditions[0] for conditions in differing.values())
            values = "; ".join(" or ".join(dict.fromkeys(conditions)) for conditions in differing.values())
            raise SweepError(
                f"the fit of {request.metric} over {request.x_text} would mix trials with different {', '.join(differing)}, "
                f"which no launch requested together: {values}. Fit one part: depthrate fit SWEEP --where {shlex.quote(first)}"
            )


def _condition(name: str, value: Any) -> str:
    """Return the SQL condition that a parameter has a value."""
    column = name if name.isidentifier() else quoted(name)
    if value is None:
        return f"{column} is null"
    return f"{column} = " + (quoted_text(value) if isinstance(value, str) else canonical_json(value))


def _mixed(request: FitRequest, trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings, without seeds, that differ between trials of one replicate and one x."""
    names = [*request.x_names, request.over]
    groups = grouped(trials, lambda params: tuple(params.get(name) for name in names))
    differing = {
        name
        for first, *others in groups.values()
        for other in others
        for name in first
        if other.get(name) != first[name]
    }
    return sorted(differing - {FitRequest.SEED})


def _counted(name: str, count: int) -> str:
    if name == "seed":
        return f"{count} seed{'s' if count > 1 else ''}"
    return f"{count} value{'s' if count > 1 else ''} of {name}"
