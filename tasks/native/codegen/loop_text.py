"""What the sources for a CPU and for a GPU have in common: loops over rows in phases, positions, numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf, isnan
from typing import Any

from torch import Tensor

from depthrate.tasks.native.codegen.operations import POINTWISE
from depthrate.tasks.native.codegen.plan import Loop
from depthrate.tasks.native.codegen.values import Kind, Layout, Value, View, merged_rows

Operand = Callable[[View | float, bool], str]
"""Returns the text of an operand, as a mask or as numbers."""
_MASKED = {operation for operation in POINTWISE if "as_mask" in POINTWISE[operation]}
_MASK_FIRST = {operation for operation in _MASKED if "pick" in POINTWISE[operation]}


@dataclass(frozen=True)
class Shape:
    """What a step's source depends on in addition to its plan."""

    samples: int
    """Samples of a tile."""
    outputs: int
    """Rows of outputs per sample."""
    has_targets: bool
    """Whether labels are numbers."""
    label_smoothing: float
    decay_groups: dict[str, int]
    """Parameter -> number of its group of weight decay, negative: none."""


class LoopText(ABC):
    """The text of a loop over rows, in phases between sums over a row, each one pass over the row."""

    def __init__(self, loop: Loop, layout: Layout):
        self.loop, self.layout = loop, layout
        self.names = {value: f"{index}" for index, value in enumerate(loop.computed)}
        self.phase = self._phases()

    def _kept_rows(self) -> list[str]:
        """Return declarations of the rows that later phases read."""
        return [self._kept(value) for value in self.loop.computed if self._is_kept(value)]

    def _passes(self) -> list[str]:
        """Return the statements of all phases."""
        last = max([*self.phase.values(), *(self._sum_phase(value) for value in self.loop.row_sums)], default=0)
        return [line for phase in range(last + 1) for line in self._pass(phase)]

    @abstractmethod
    def _kept(self, value: Value) -> str:
        """Return the declaration of a row."""

    @abstractmethod
    def _columns(self, width: int, computed: Sequence[Value], sums: Sequence[Value]) -> list[str]:
        """Return a pass over the columns of a row, which computes values and adds to sums over rows."""

    @abstractmethod
    def _number(self, value: Value) -> list[str]:
        """Return statements that compute a number of a row."""

    def _pass(self, phase: int) -> list[str]:
        """Return the statements of a phase."""
        computed = [value for value in self.loop.computed if self.phase[value] == phase]
        sums = self._sums_of(phase)
        widths = {self._width(value) for value in computed} | {value.columns for value in sums}
        lines = []
        for width in sorted(widths - {1}):
            lines += self._columns(
                width,
                [value for value in computed if self._width(value) == width],
                [value for value in sums if value.columns == width],
            )
        for value in computed:
            if value.columns == 1:
                lines += self._number(value)
        return lines

    def _sums_of(self, phase: int) -> list[Value]:
        return [value for value in self.loop.row_sums if self._sum_phase(value) == phase]

    def _own(self, view: View) -> bool:
        return view.value in self.names

    def _phases(self) -> dict[Value, int]:
        phase: dict[Value, int] = {}
        for value in self.loop.computed:
            width = self._width(value)
            own = [view.value for view in value.views if self._own(view)]
            phase[value] = max((phase[o] + (width > 1 and o.columns == 1) for o in own), default=0)
        summed = {view.value for value in self.loop.row_sums for view in value.views}
        for value in reversed(self.loop.computed):  # what comes from memory only is computed where it is used
            users = [phase[user] for user in self.loop.computed for v in user.views if v.value is value]
            is_free = value.kind is Kind.POINT and value.columns > 1 and value not in summed
            if is_free and users and value not in self.loop.stored:
                if not any(self._own(view) for view in value.views):
                    phase[value] = min(users)
        return phase

    def _width(self, value: Value) -> int:
        """Return the columns over which a value is computed."""
        return value.views[0].shape[-1] if value.kind is Kind.REDUCE else value.columns

    def _sum_phase(self, value: Value) -> int:
        added = value.views[0].value
        if added not in self.phase:
            return 0
        # a row's number is computed behind its pass
        return self.phase[added] + (value.columns > 1 and added.columns == 1)

    def _is_kept(self, value: Value) -> bool:
        """Return whether a row is read in a later phase."""
        later = [self.phase[user] for user in self.loop.computed for view in user.views if view.value is value]
        return value.columns > 1 and any(phase > self.phase[value] for phase in later)

    def _expression(self, value: Value, operand: Operand) -> str:
        operation = value.operation
        texts = [
            operand(item, operation in _MASKED and (index == 0 or operation not in _MASK_FIRST))
            for index, item in enumerate(value.operands)
        ]
        if operation == "to number":
            texts = [operand(value.operands[0], True)]
        return POINTWISE[operation].format(*texts)


def position_of(axes: Sequence[tuple[int, int]], row: str) -> str:
    """Return the position of a row, numbered over axes of these sizes and strides."""
    terms, inner = [], 1
    for index, (size, stride) in reversed(list(enumerate(axes))):
        if stride:
            number = row if inner == 1 else f"{row} / {inner}"
            number = number if index == 0 else f"({number}) % {size}"
            terms.append(f"({number}) * {stride}")
        inner *= size
    return " + ".join(terms) if terms else "0"


def flat_axes(seen: Tensor) -> list[tuple[int, int]]:
    """Return sizes and strides of all axes of an index."""
    return merged_rows(seen.unsqueeze(-1))


def literal(number: Any) -> str:
    if isinstance(number, bool):
        return str(int(number))
    if isinstance(number, int):
        return str(number)
    if isnan(number):
        return "NAN"
    if isinf(number):
        return "INFINITY" if number == inf else "-INFINITY"
    return f"Number({number!r})"


def number_text(number: Any) -> str:
    return repr(number) if isinstance(number, float) and isfinite(number) else literal(number)


def is_index(value: Value) -> bool:
    return value.data is not None and not value.data.is_floating_point() and not value.is_boolean
