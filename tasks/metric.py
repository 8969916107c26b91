"""What a task measures: one declaration for the store's columns, checks, labels, figures and docs. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Axis = Literal["log", "linear"]
Per = Literal["layer", "step"]
Kind = Literal["scalar", "vector", "matrix"]
Panel = Literal["always", "fitted", "spectrum", "cosines"]

Excess = Callable[[Sequence[Mapping[str, Any]]], Sequence[float] | None]
"""Parameters of some trials -> what theory says of each one's gap, up to one common factor; None where it says nothing."""
Bound = Callable[[Sequence[Mapping[str, Any]]], Sequence[float | None] | None]
"""The same of an upper bound; None for a trial where the theorem has none."""


class MeasurementError(ValueError):
    """A measurement is declared in a way that cannot be kept or drawn."""


@dataclass(frozen=True)
class Optimum:
    """What theory says of the least value that training can bring a measurement to."""

    falls_with: str
    """The parameter along which it cannot rise."""
    free: frozenset[str]
    """The parameters it does not depend on, how one trains and what is measured: two trials that differ in these and in
    `falls_with` alone are comparable."""
    holds: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether theory says so of a trial with these parameters; null: of all."""
    reached_where: str = ""
    """The measurement that is 1 for trials whose solver ended at a stationary point, 0 where it did not, and null where none
    looked for one; empty: no solver does. Theorems on optima speak of the first alone."""


@dataclass(frozen=True)
class Metric:
    """One column that a task measures, and how readers see it. A task's measurements are shown in their order."""

    name: str
    """The column."""
    label: str = ""
    """For readers, plain text; empty: the name."""
    doc: str = ""
    """One line: what it is, and its source."""
    axis: Axis = "log"
    """Of the figures by step and by layer."""
    per: Per = "layer"
    """`layer`: a column of the table metrics; `step`: of the table curves."""
    kind: Kind = "scalar"
    """A number; or a list of numbers, kept as float64 (vector) or as float32 (matrix, row by row)."""
    panel: Panel = "always"
    """What the report draws: always, or only where a fit asks for it; of a vector its shares of the largest entry
    (spectrum), of a square matrix, a Gram matrix, the cosines between its centred vectors."""
    entry: str = ""
    """What one entry of a vector or matrix is called on an axis; empty: the label."""
    gap: str = ""
    """The measurement that holds how far this one stands above its limit as depth grows; the report draws the limit."""
    asked_by: str = ""
    """The parameter of a trial that names it, beside others with commas, where it is to be measured; empty: it always is."""
    excess: Excess | None = None
    """What theory says of that gap, where it says something; the report draws it above the limit."""
    bound: Bound | None = None
    """What a theorem bounds it by from above, up to one common factor: reports say whether data fall as fast."""
    reaches_limit: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None
    """Whether trials with these parameters come to that limit as depth grows; else it is a lower bound. Null: always."""
    gap_bound: str = ""
    """The measurement that holds a theorem's own bound on that gap, without a factor to choose; it speaks of optima."""
    at_zero: Callable[[Sequence[Mapping[str, Any]]], Sequence[float | None]] | None = None
    """What weights of zero have, where that is known: a bound above it says nothing and is not drawn."""
    optimum: Optimum | None = None
    """For what training minimises: how its least value depends on the parameters."""

    def __post_init__(self) -> None:
        """Check the declaration.

        Raises:
            MeasurementError: a word is not one of those allowed, or the name cannot be a column.
        """
        if not self.name.isidentifier():
            raise MeasurementError(
                f"measurement {self.name!r}: a name has letters, digits and '_' and begins with a letter"
            )
        for field, words in (("axis", Axis), ("per", Per), ("kind", Kind), ("panel", Panel)):
            allowed = get_args(words)
            if (given := getattr(self, field)) not in allowed:
                raise MeasurementError(
                    f"measurement {self.name!r}: {field} is {given!r}; allowed: {', '.join(allowed)}"
                )
        wanted = {"spectrum": "vector", "cosines": "matrix"}.get(self.panel, self.kind)
        if self.kind != wanted:
            raise MeasurementError(
                f"measurement {self.name!r}: panel {self.panel!r} is for a {wanted}, not a {self.kind}"
            )
        if self.kind != "scalar" and self.per == "step":
            raise MeasurementError(f"measurement {self.name!r}: a {self.kind} is measured per layer, not per step")
        if not self.label:
            object.__setattr__(self, "label", self.name)
        if not self.entry:
            object.__setattr__(self, "entry", self.label)


def scalars(measurements: Iterable[Metric], per: Per | None = None) -> list[str]:
    """Return the names of those that are one number, per layer, per step or both: what can be fitted and searched for."""
    return [
        measurement.name
        for measurement in measurements
        if measurement.kind == "scalar" and per in (None, measurement.per)
    ]


def by_name(measurements: Iterable[Metric]) -> dict[str, Metric]:
    """Return name -> measurement.

    Raises:
        MeasurementError: two have one name, or a gap is not a number among them.
    """
    named: dict[str, Metric] = {}
    for each in measurements:
        if each.name in named:
            raise MeasurementError(f"measurement {each.name!r} is declared twice; give one of them another name")
        named[each.name] = each
    for each in named.values():
        for word, other in (
            ("gap", each.gap),
            ("gap_bound", each.gap_bound),
            ("optimum.reached_where", each.optimum.reached_where if each.optimum else ""),
        ):
            if other and other not in scalars(named.values()):
                raise MeasurementError(
                    f"measurement {each.name!r}: its {word} {other!r} is no number that the task measures; declare it too"
                )
    return named
