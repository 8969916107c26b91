"""Metrics: one declaration for the store's columns, checks, labels, figures and docs. Importable without torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from depthrate.errors import InputError

Axis = Literal["log", "linear"]
Per = Literal["layer", "step"]
Kind = Literal["scalar", "vector", "matrix"]
Panel = Literal["always", "fitted", "spectrum", "cosines"]

Excess = Callable[[Sequence[Mapping[str, Any]]], Sequence[float] | None]
"""Parameters of trials -> predicted gap of each trial, up to a common factor, or None without a prediction."""
Bound = Callable[[Sequence[Mapping[str, Any]]], Sequence[float | None] | None]
"""Parameters of trials -> upper bound of each trial, up to a common factor, or None for a trial without a bound."""


class MeasurementError(InputError):
    """A metric is declared with invalid fields."""


@dataclass(frozen=True)
class Optimum:
    """Theory about the minimum of a metric over training."""

    falls_with: str
    """Parameter along which the minimum cannot rise."""
    free: frozenset[str]
    """Parameters on which the minimum does not depend. Trials that differ only in these and in `falls_with` are comparable."""
    holds: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether the theory applies to these parameters. None: always."""
    reached_where: str = ""
    """Name of the metric that is 1 if the solver ended at a stationary point, 0 if it did not, and None if no solver ran.
    Theory covers only the value 1. Empty: no solver exists."""


@dataclass(frozen=True)
class Metric:
    """One measured column and its presentation. A task's metrics are shown in the order of their declaration."""

    name: str
    """Column name."""
    label: str = ""
    """Label without markup. Default: the name."""
    doc: str = ""
    """One line: definition and source."""
    axis: Axis = "log"
    """Axis scale in figures over steps and layers."""
    per: Per = "layer"
    """Table of the column: metrics (`layer`) or curves (`step`)."""
    kind: Kind = "scalar"
    """A number, or a list of numbers stored as float64 (vector) or float32 (matrix, row by row)."""
    panel: Panel = "always"
    """When and how the report draws it: always, only if a fit requests it (fitted), a vector's shares of its largest entry
    (spectrum), or the cosines of centred vectors from their Gram matrix (cosines)."""
    entry: str = ""
    """Axis label for the entries of a vector or matrix. Default: the label."""
    gap: str = ""
    """Name of the metric that holds the distance to the limit at infinite depth. The report draws the limit."""
    asked_by: str = ""
    """Parameter that lists, separated by commas, the metrics to measure. Empty: always measured."""
    excess: Excess | None = None
    """Predicted gap, which the report draws above the limit."""
    bound: Bound | None = None
    """Upper bound from a theorem, up to a common factor. Reports compare how fast it falls."""
    reaches_limit: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None
    """Whether trials with these parameters reach the limit at infinite depth (otherwise it is a lower bound). None: always."""
    gap_bound: str = ""
    """Name of the metric that holds a theorem's bound on the gap, with its constant. It holds for optima."""
    at_zero: Callable[[Sequence[Mapping[str, Any]]], Sequence[float | None]] | None = None
    """Value at zero weights, if known. A larger bound is vacuous and is not drawn."""
    has_simplex: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None
    """Whether theory expects a simplex of trials with these parameters, with which reports compare cosines. None: never."""
    optimum: Optimum | None = None
    """Dependence of the minimum on the parameters, for a metric that training minimises."""

    def __post_init__(self) -> None:
        """Check the declaration.

        Raises:
            MeasurementError: A field has a value that is not allowed, or the name cannot be a column.
        """
        if not isinstance(self.name, str) or not self.name.strip():
            raise MeasurementError(f"metric name is {self.name!r}, expected the name of a column, such as 'nc1'")
        for field, values in (("axis", Axis), ("per", Per), ("kind", Kind), ("panel", Panel)):
            allowed = get_args(values)
            if (value := getattr(self, field)) not in allowed:
                raise MeasurementError(
                    f"metric {self.name!r}: {field} is {value!r}, expected one of {', '.join(allowed)}"
                )
        required_kind = {"spectrum": "vector", "cosines": "matrix"}.get(self.panel, self.kind)
        if self.kind != required_kind:
            raise MeasurementError(
                f"metric {self.name!r}: panel {self.panel!r} needs kind {required_kind!r}, not {self.kind!r}"
            )
        if self.kind != "scalar" and self.per == "step":
            raise MeasurementError(f"metric {self.name!r}: per is 'step', but a {self.kind} is measured per layer")
        if not self.label:
            object.__setattr__(self, "label", self.name)
        if not self.entry:
            object.__setattr__(self, "entry", self.label)


fitted = partial(Metric, panel="fitted")
"""A metric that is drawn only if a fit requests it."""
linear = partial(fitted, axis="linear")
"""A fitted metric on a linear axis."""
step_metric = partial(Metric, per="step")
fitted_step = partial(fitted, per="step")


def scalars(measurements: Iterable[Metric], per: Per | None = None) -> list[str]:
    """Return the names of the scalar metrics, per layer, per step or both, which fits and searches accept."""
    return [
        measurement.name
        for measurement in measurements
        if measurement.kind == "scalar" and per in (None, measurement.per)
    ]


def by_name(measurements: Iterable[Metric]) -> dict[str, Metric]:
    """Map names to metrics.

    Raises:
        MeasurementError: Two metrics have the same name, or a gap is not a scalar metric among these metrics.
    """
    named: dict[str, Metric] = {}
    for metric in measurements:
        if metric.name.casefold() in map(str.casefold, named):  # SQL ignores case
            raise MeasurementError(f"metric {metric.name!r} is declared twice. Rename one of them.")
        named[metric.name] = metric
    for metric in named.values():
        for field, other in (
            ("gap", metric.gap),
            ("gap_bound", metric.gap_bound),
            ("optimum.reached_where", metric.optimum.reached_where if metric.optimum else ""),
        ):
            if other and other not in scalars(named.values()):
                raise MeasurementError(
                    f"metric {metric.name!r}: {field} is {other!r}, which is not a scalar metric of the task. Declare it too."
                )
    return named
