"""What an interval is over: which random draws a curve's trials differ in, and which of them belong together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import canonical_json
from depthrate.tasks.parameters import OncePerObject

SCOPE = "seed_scope"
"""The parameter that says whether a seed's trials share their draws (`seed`) or each has its own (`trial`)."""
CHAIN = "continuation"
"""The parameter with the depths that a trial goes through."""


def replicate_of(request: FitRequest, params: Mapping[str, Any]) -> Any:
    """Return the draw that a trial belongs to; null where each trial is one of its own."""
    # of a chain of depths each begins where the one before ended: one draw, whatever its scope
    if request.over == FitRequest.SEED and params.get(SCOPE) == "trial" and not params.get(CHAIN):
        return None
    return params.get(request.over)


def draws_of(rows: Sequence[Mapping[str, Any]]) -> list[Hashable] | None:
    """Return what each value of a curve belongs to; null where every value is a draw of its own."""
    draws = [row.get("draw") for row in rows]
    return None if not draws or any(draw is None for draw in draws) else draws


def draws_text(request: FitRequest, trials: Sequence[Mapping[str, Any]], draw_names: Iterable[str]) -> str:
    """Say what an interval is over, and which other draws the trials differ in; empty where each trial is its own draw.

    Settings that one draw has several of at one x are named too: the curve is then an average over them.
    draw_names: the parameters that seed a draw.
    """
    draws = {replicate_of(request, params) for params in trials}
    if not draws or None in draws:
        return ""
    text = _counted(request.over, len(draws))
    written = OncePerObject(canonical_json)
    for name in dict.fromkeys([*draw_names, *_mixed(request, trials)]):
        values = {written(params[name]) for params in trials if name in params}
        if name == request.over or name in request.by or len(values) < 2:
            continue
        if len({(params[request.over], written(params[name])) for params in trials}) == len(draws):
            text += f", each with its own {name}"
        else:
            text += f", at the {_counted(name, len(values))} used"
    return text


def _mixed(request: FitRequest, trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings, no seeds, in which trials differ that have one draw and one x."""
    names = [*request.x_names, request.over]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for params in trials:
        groups.setdefault(tuple(params.get(name) for name in names), []).append(params)
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
