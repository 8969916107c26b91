"""`fit:` in a sweep: which rates the aggregation stage fits, and to which trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depthrate.sweeps.content import kind_of, require_keys
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expression import Expression, ExpressionError
from depthrate.tasks.measurement import scalars
from depthrate.tasks.schema import ParameterError, nearest, shown
from depthrate.tasks.task import Task

if TYPE_CHECKING:
    from depthrate.sweeps.sweep import Sweep

WORDS = {"weights": ("equal", "spread", "robust"), "unconverged": ("keep", "drop")}
_ALLOWED = {
    "layer": "a whole number, counted from the last where it is negative",
    "where": "an SQL condition, as in 'weight_decay > 0'",
    "weights": ", ".join(WORDS["weights"]),
    "x_min": "a number above zero, or auto",
    "unconverged": ", ".join(WORDS["unconverged"]),
    "target": "a number above zero",
    "over": "a parameter's name",
}
"""Option -> what it accepts."""


@dataclass(frozen=True)
class FitRequest:
    """A rate to fit: `metric` against `x`, one curve for each combination of `by`."""

    metric: str
    x: str = "depth"
    """A parameter, or arithmetic over parameters: `depth - 1`."""
    by: tuple[str, ...] = ()
    layer: int | None = None
    """Null for the last; -2 is the one before it."""
    where: str | None = None
    """SQL over the trial's row in `results`: which trials the curve is made of."""
    weights: str = "equal"
    """equal, spread (the variance may follow a power of x), robust (values far from their seeds are pulled in)."""
    x_min: float | str | None = None
    """The lower cut-off: a number, or auto (the smallest x that passes the lack-of-fit test at 5 %)."""
    unconverged: str = "keep"
    """keep (and count) or drop trials whose objective still falls."""
    target: float | None = None
    """A value of the metric: at which x is it reached?"""
    over: str = "seed"
    """The parameter whose values are the draws that intervals are over: trials with one value of it belong together."""

    @property
    def x_names(self) -> list[str]:
        """The parameters that x is made of."""
        return sorted(Expression(self.x).names)

    @property
    def options(self) -> list[str]:
        """Which trials and how, in words, where that is not as by default: fits that differ in it alone are told apart."""
        said = {
            f"where {self.where}": bool(self.where),
            f"weights {self.weights}": self.weights != FitRequest.weights,
            f"x_min {self.x_min}": self.x_min is not None,
            "converged only": self.unconverged == "drop",
        }
        return [text for text, is_so in said.items() if is_so]

    def spec(self) -> dict[str, Any]:
        """Return the request as a sweep file would hold it: what differs from the defaults."""
        extra = {name: getattr(self, name) for name in _ALLOWED}
        defaults = {name: getattr(FitRequest, name) for name in _ALLOWED}
        content = {"metric": self.metric, "x": self.x, "by": list(self.by)}
        return content | {name: value for name, value in extra.items() if value != defaults[name]}


def fit_request(part: Mapping[str, Any]) -> FitRequest:
    """Build a request from an entry of `fit:`.

    Raises:
        SweepError: a key is unknown or has the wrong form.
    """
    require_keys(part, ("metric", "x", "by", *_ALLOWED), "fit")
    by = part.get("by", [])
    if not isinstance(part.get("metric"), str) or not isinstance(part.get("x", "depth"), str):
        raise SweepError(
            f"fit entry {shown(dict(part))}: metric is a name and x a name or arithmetic, as in {{metric: nc1, x: depth - 1}}"
        )
    if not isinstance(by, list) or not all(isinstance(name, str) for name in by):
        raise SweepError(f"fit entry {shown(dict(part))}: by is a list of parameter names")
    options = {name: part[name] for name in _ALLOWED if part.get(name) is not None}
    for name, value in options.items():
        if not _is_allowed(name, value):
            raise SweepError(f"fit entry {shown(dict(part))}: {name} is {kind_of(value)}; allowed: {_ALLOWED[name]}")
    return FitRequest(part["metric"], part.get("x", "depth"), tuple(by), **options)


def _is_allowed(name: str, value: Any) -> bool:
    if name in WORDS:
        return value in WORDS[name]
    if name in ("where", "over"):
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    if name == "layer":
        return isinstance(value, int)
    return (name == "x_min" and value == "auto") or (isinstance(value, int | float) and 0 < value < math.inf)


def check_fits(sweep: Sweep, task: Task) -> None:
    """Check that what `fit:` asks for can exist.

    Raises:
        SweepError: an unknown parameter or metric, with the nearest known one.
    """
    for request in sweep.fit:
        known = sorted(scalars(task.measurements))  # a task that declares none may measure anything
        if known and request.metric not in known:
            raise SweepError(
                f"unknown metric {request.metric!r} in fit{nearest(request.metric, known)} (known: {', '.join(known)})"
            )
        try:
            of_x = request.x_names
            over = [request.over] if request.over != FitRequest.over else []  # a task may have no seed
            parameters = {name: task.schema.require_known(name, "fit") for name in (*of_x, *request.by, *over)}
        except ParameterError as error:
            raise SweepError(str(error)) from None
        except ExpressionError as error:
            raise SweepError(f"fit over x: {error}") from None
        if not of_x:
            raise SweepError(f"fit over x: {request.x!r}, which names no parameter; give one, or arithmetic over some")
        for name in of_x:
            if parameters[name].kind not in ("int", "float", "scalar"):
                raise SweepError(f"fit over x: {name!r}, which is {parameters[name].allowed}; x must be a number")
        for name in over:
            if name in (*of_x, *request.by):
                raise SweepError(f"fit over {name!r}, which x or by has too; intervals are over what both leave open")
