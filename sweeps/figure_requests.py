"""`figures:` in a sweep: which figures of its own the report draws, of any metric over any parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from depthrate.sweeps.content import kind_of, require_keys
from depthrate.sweeps.errors import SweepError
from depthrate.tasks.schema import ParameterError, nearest, shown
from depthrate.tasks.task import Task

if TYPE_CHECKING:
    from depthrate.sweeps.sweep import Sweep

NEEDED = {
    "curve": ("metric", "x"),
    "share": ("condition", "x"),
    "map": ("metric", "x", "y"),
    "distribution": ("metric",),
    "spectrum": ("metric",),
    "matrix": ("metric",),
}
"""Kind -> what an entry of it must say: curve, a metric over an axis; share, of the trials with a condition over an axis;
map, a metric over two axes; distribution, a metric's values; spectrum, a vector layer by layer; matrix, one of one trial."""
ALLOWED = {
    "curve": ("by", "layer", "where", "lines", "title", "x_axis", "y_axis"),
    "share": ("by", "where", "title", "x_axis"),
    "map": ("layer", "where", "title", "x_axis", "y_axis"),
    "distribution": ("by", "layer", "where", "lines", "title", "y_axis"),
    "spectrum": ("where", "title", "y_axis"),
    "matrix": ("layer", "where", "title", "order", "lowest"),
}
AXES = ("log", "linear")


@dataclass(frozen=True)
class FigureRequest:
    """A figure that a sweep asks for."""

    kind: str
    """One of NEEDED."""
    metric: str = ""
    """A measured column, or an SQL expression over the trial's row in `results`; with a layer, over its row in `metrics`."""
    condition: str = ""
    """SQL over the trial's row in `results`, true or false, as in "solution = 'dnc'"."""
    x: str = ""
    """The parameter on the horizontal axis."""
    y: str = ""
    """The parameter on the vertical axis of a map."""
    by: tuple[str, ...] = ()
    """Parameters that part the trials into curves."""
    layer: int | None = None
    """Null for the last; -2 is the one before it."""
    where: str = ""
    """SQL over the trial's row in `results`: which trials are drawn."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Name -> an SQL expression over `results`: reference lines, what theory says of each trial, averaged at each place."""
    order: str = ""
    """Of a matrix: a measured vector, the order of rows and columns for a second map."""
    lowest: str = ""
    """Of a matrix: an SQL expression over `results`; the trial where it is lowest is drawn. Without it the first."""
    title: str = ""
    x_axis: str = ""
    """log or linear; without it log where values are positive and span a factor of 8 or more."""
    y_axis: str = ""

    def spec(self) -> dict[str, Any]:
        """Return the request as a sweep file would hold it: what differs from the defaults."""
        empty = FigureRequest(self.kind)
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        content = {name: value for name, value in given.items() if name == "kind" or value != getattr(empty, name)}
        return {
            name: list(v) if isinstance(v, tuple) else dict(v) if name == "lines" else v for name, v in content.items()
        }


def figure_request(part: Mapping[str, Any]) -> FigureRequest:
    """Build a request from an entry of `figures:`.

    Raises:
        SweepError: the kind is unknown, something is missing that it needs, or a key has the wrong form.
    """
    kind = part.get("kind")
    if not isinstance(kind, str) or kind not in NEEDED:
        hint = nearest(kind, NEEDED) if isinstance(kind, str) else ""
        raise SweepError(
            f"figures entry {shown(dict(part))}: kind is {kind_of(kind)}; give one of {', '.join(NEEDED)}{hint}"
        )
    require_keys(part, ("kind", *NEEDED[kind], *ALLOWED[kind]), f"figures, kind {kind}")
    for name in NEEDED[kind]:
        if part.get(name) in (None, ""):
            raise SweepError(
                f"figures entry {shown(dict(part))}: {name} is missing; a {kind} needs {', '.join(NEEDED[kind])}"
            )
    given = {name: value for name, value in part.items() if value is not None}
    for name, value in given.items():
        _check_form(name, value, part)
    options: dict[str, Any] = {name: tuple(value) if name == "by" else value for name, value in given.items()}
    return FigureRequest(**options)


def _check_form(name: str, value: Any, part: Mapping[str, Any]) -> None:
    def are_texts(values: Any) -> bool:
        return all(isinstance(each, str) for each in values)

    if name == "by":
        good, allowed = isinstance(value, list) and are_texts(value), "a list of parameter names"
    elif name == "layer":
        good = isinstance(value, int) and not isinstance(value, bool)
        allowed = "a whole number, counted from the last where it is negative"
    elif name == "lines":
        good = isinstance(value, Mapping) and are_texts(value) and are_texts(value.values())
        allowed = "a mapping from name to SQL expression"
    elif name in ("x_axis", "y_axis"):
        good, allowed = value in AXES, ", ".join(AXES)
    else:
        good, allowed = isinstance(value, str), "a text"
    if not good:
        raise SweepError(f"figures entry {shown(dict(part))}: {name} is {kind_of(value)}; allowed: {allowed}")


def check_figures(sweep: Sweep, task: Task) -> None:
    """Check that what `figures:` asks for can exist; SQL is checked where results are there, when it is drawn.

    Raises:
        SweepError: an unknown parameter or measured column, with the nearest known one.
    """
    measured = {each.name: each for each in task.measurements}
    for request in sweep.figures:
        axes = (name for name in (request.x, request.y) if name)
        for name in (*axes, *request.by):
            try:
                task.schema.require_known(name, "figures")
            except ParameterError as error:
                raise SweepError(str(error)) from None
        kinds = {"spectrum": "vector", "matrix": "matrix"}
        wanted = kinds.get(request.kind)
        known = [name for name, each in measured.items() if wanted is None or each.kind == wanted]
        # a task that declares none may measure anything, and what is no name is an SQL expression
        if measured and request.metric.isidentifier() and request.metric not in known:
            listed = ", ".join(known) or "none"
            raise SweepError(
                f"unknown {wanted or 'metric'} {request.metric!r} in figures{nearest(request.metric, known)} (known: {listed})"
            )
