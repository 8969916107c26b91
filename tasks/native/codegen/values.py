"""Values of a generated step, and views of them.

A value is a matrix of rows in a tile's memory, or a row of numbers that exists in registers only. A view is a value seen with
another shape: a tensor without data whose storage is the value's memory, so that torch itself computes shapes and strides.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

ALIGNED = 16
"""Numbers to a multiple of which rows are padded: a multiple of the vectors of all processors."""
ROWS = 4
"""Rows that a kernel computes at a time."""


def up(n: int, step: int) -> int:
    """Round up to a multiple."""
    return (n + step - 1) // step * step


@dataclass(frozen=True)
class Layout:
    """Distances of rows in memory."""

    number_bytes: int
    is_cuda: bool = False

    def row_stride(self, columns: int) -> int:
        """Return the numbers from one row to the next.

        On a CPU wide rows avoid powers of two, which map to few cache lines. On a GPU eight adjacent rows begin in
        different banks of shared memory, of four numbers each.
        """
        if self.is_cuda:
            whole = up(columns, 4)
            return whole if whole // 4 % 2 else whole + 4
        whole = up(columns, ALIGNED)
        num_bytes = whole * self.number_bytes
        return whole + ALIGNED if num_bytes >= 512 and num_bytes % 512 == 0 else whole


class Kind(enum.Enum):
    """How a value is computed."""

    PARAMETER = "parameter"
    STATE = "state"
    CONSTANT = "constant"
    INPUT = "input"
    POINT = "point"
    """Elementwise, in a loop over rows."""
    REDUCE = "reduce"
    """One number per row, in a loop over rows: a sum or a maximum."""
    ROW_SUM = "row sum"
    """Sums over rows, in a loop over rows."""
    PRODUCT = "product"
    COPY = "copy"
    """Numbers of other values, moved or added."""
    LOOK_UP = "look up"
    """Rows of a table."""
    SCATTER = "scatter"
    """Rows added to rows of a table."""
    FENCE = "fence"
    """Nothing: later loops come after earlier ones."""


LOOP_KINDS = (Kind.POINT, Kind.REDUCE)
EXTERNAL_KINDS = (Kind.PARAMETER, Kind.STATE, Kind.CONSTANT)
"""Values outside the tile's memory, whose rows are not padded."""


@dataclass(eq=False)
class Value:
    """A matrix of rows: all axes but the last enumerate rows."""

    kind: Kind
    shape: tuple[int, ...]
    operands: list[View | float] = field(default_factory=list)
    is_flat: bool = False
    """Whether rows are not padded."""
    is_boolean: bool = False
    operation: Any = None
    """Elementwise operation, kind of reduction, or parts of a copy."""
    start: View | None = None
    """Parameter that a product is added to."""
    data: Tensor | None = None
    """Numbers of a constant."""
    address: int = 0
    """Position of a parameter or state among a trial's numbers."""
    stage: int = -1
    """Number of the kernel behind which its loop runs, or its own number."""
    loop_stage: int = -1
    """Stage of the loop that computes a row sum."""
    is_stored: bool = False

    @property
    def views(self) -> list[View]:
        """Operands that are no numbers."""
        return [operand for operand in self.operands if isinstance(operand, View)]

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def is_in_memory(self) -> bool:
        return self.kind not in LOOP_KINDS or self.is_stored

    def row_stride(self, layout: Layout) -> int:
        """Return the numbers from one row to the next."""
        if self.is_flat or self.kind in EXTERNAL_KINDS or (self.columns == 1 and self.kind is not Kind.PRODUCT):
            return self.columns
        return layout.row_stride(self.columns)

    def natural(self, layout: Layout) -> Tensor:
        """Return the view of the whole value in its own shape."""
        return with_rows(self.shape, self.row_stride(layout))


def with_rows(shape: Sequence[int], row_stride: int) -> Tensor:
    """Return a tensor without data whose rows, all axes but the last, are one run."""
    strides, run = [1], row_stride
    for size in reversed(shape[:-1]):
        strides.insert(0, run)
        run *= size
    return torch.empty_strided(shape, strides, device="meta")


@dataclass(eq=False)
class View:
    """A value seen as a tensor."""

    value: Value
    seen: Tensor
    """Tensor on the meta device with the view's shape, strides and offset."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.seen.shape)


def merged_rows(seen: Tensor) -> list[tuple[int, int]]:
    """Return sizes and strides of a tensor's rows, all axes but the last, with adjacent axes merged where they are one run."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(seen.shape[:-1], seen.stride()[:-1], strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def is_plain(view: View, layout: Layout) -> bool:
    """Return whether a view has the rows of its value, in their order and with all their columns."""
    value, seen = view.value, view.seen
    if seen.storage_offset() or seen.shape[-1] != value.columns or seen.numel() != prod(value.shape):
        return False
    if seen.shape[-1] > 1 and seen.stride(-1) != 1:
        return False
    rows = merged_rows(seen)
    return not rows or rows == [(value.rows, value.row_stride(layout))]


def is_row_number(view: View, layout: Layout) -> bool:
    """Return whether a view repeats, in each row, the number of a value with one number per row, in the same order."""
    value, seen = view.value, view.seen
    if value.columns != 1 or seen.storage_offset() or prod(seen.shape[:-1]) != value.rows:
        return False
    if seen.shape[-1] > 1 and seen.stride(-1) != 0:
        return False
    rows = merged_rows(seen)
    return not rows or rows == [(value.rows, value.row_stride(layout))]


def has_unit_columns(seen: Tensor) -> bool:
    """Return whether a loop can read a tensor's rows: adjacent columns, or one number for all of them."""
    return seen.shape[-1] == 1 or seen.stride(-1) in (0, 1)


def memory_order(seen: Tensor) -> list[int]:
    """Return a tensor's axes from the largest to the smallest stride, axes of one entry first."""

    def rank(axis: int) -> tuple[int, int]:
        size, stride = seen.shape[axis], seen.stride(axis)
        return (0, axis) if size == 1 else (1, -stride)

    return sorted(range(seen.ndim), key=rank)


def inverse(order: Sequence[int]) -> list[int]:
    """Return the inverse of a permutation."""
    return sorted(range(len(order)), key=lambda index: order[index])
