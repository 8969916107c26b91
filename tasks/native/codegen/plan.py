"""Order and memory of a generated step: what each loop computes and stores, and where values are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from depthrate.tasks.native.codegen.lower import Program
from depthrate.tasks.native.codegen.operations import COSTLY
from depthrate.tasks.native.codegen.values import (
    EXTERNAL_KINDS,
    LOOP_KINDS,
    ROWS,
    Kind,
    Layout,
    Value,
    View,
    is_plain,
    up,
)

LINE_BYTES = 64
CHEAP_DEPTH = 3
"""Operations that are repeated at most to save a value's way through memory."""


@dataclass(eq=False)
class Loop:
    """A loop over rows: the values that it computes, in order, and those of them that it stores or adds up."""

    stage: int
    rows: int
    computed: list[Value] = field(default_factory=list)
    stored: list[Value] = field(default_factory=list)
    row_sums: list[Value] = field(default_factory=list)

    def reads(self) -> Iterator[Value]:
        """Yield values in memory that it reads."""
        own = set(self.computed)
        for value in (*self.computed, *self.row_sums):
            yield from (view.value for view in value.views if view.value not in own)


Step = Loop | Value


@dataclass
class Plan:
    """Kernels and loops in order, and the place of each value in a tile's memory, in bytes."""

    program: Program
    steps: list[Step]
    places: dict[Value, int]
    num_bytes: int
    in_place: dict[Value, Value]
    """Parameter's gradient that is added up in place -> the parameter."""
    gradients: dict[Value, int]
    """Place of each parameter's gradient."""


def plan(program: Program) -> Plan:
    """Choose what is computed where."""
    in_place = gradients_in_place(program)
    steps = ordered(program)
    places, gradients, num_bytes = _placed(program, steps, in_place)
    return Plan(program, steps, places, num_bytes, in_place, gradients)


def gradients_in_place(program: Program) -> dict[Value, Value]:
    """Return the kernels that can add to a parameter's gradient themselves: nothing else reads their results."""
    uses: dict[Value, int] = {}
    read = [view for value in program.values for view in value.views]
    terms = [term for group in program.gradients.values() for term in group]
    for view in (*read, *terms, program.output):
        uses[view.value] = uses.get(view.value, 0) + 1
    found = {}
    for name, group in program.gradients.items():
        parameter = program.parameters[name]
        for term in group:
            value = term.value
            if uses[value] == 1:
                _transpose_product(term, program.layout)
            adds = value.kind in (Kind.ROW_SUM, Kind.SCATTER) or (
                value.kind is Kind.PRODUCT and value.start is None and len(value.shape) == 2
            )
            has_rows = (value.rows, value.columns) == (parameter.rows, parameter.columns)
            has_rows &= value.row_stride(program.layout) == padded_columns(parameter, program.layout)
            if adds and has_rows and uses[value] == 1 and is_plain(term, program.layout):
                found[value] = parameter
    return found


def _transpose_product(term: View, layout: Layout) -> None:
    """Let a product that a gradient reads transposed give the transposed matrix itself, B^T A^T in place of A B."""
    value = term.value
    if value.kind is not Kind.PRODUCT or value.start is not None or len(value.shape) != 2 or term.seen.ndim != 2:
        return
    left, right = value.views
    is_readable = right.value.kind not in EXTERNAL_KINDS and 1 in left.seen.stride()
    if not is_plain(View(value, term.seen.t()), layout) or not is_readable:
        return
    value.shape = (value.shape[1], value.shape[0])
    value.operands = [View(right.value, right.seen.t()), View(left.value, left.seen.t())]
    term.seen = value.natural(layout)


def ordered(program: Program, *, splits_row_sums: bool = False) -> list[Step]:
    """Return kernels and loops in order, with what each loop computes.

    `splits_row_sums`: Row sums are kernels that read what loops have stored, instead of parts of loops.
    """
    loops: dict[tuple[int, int], Loop] = {}
    if splits_row_sums:
        for value in program.values:
            if value.kind is Kind.ROW_SUM:
                value.views[0].value.is_stored = True

    def loop_of(stage: int, rows: int) -> Loop:
        return loops.setdefault((stage, rows), Loop(stage, rows))

    position = {value: index for index, value in enumerate(program.values)}
    for value in program.values:
        if value.kind in LOOP_KINDS and value.is_stored:
            loop_of(value.stage, _rows(value)).stored.append(value)
        if value.kind is Kind.ROW_SUM and not splits_row_sums:
            loop_of(value.loop_stage, prod(value.views[0].shape[:-1])).row_sums.append(value)
    pending = sorted(loops)
    done: set[tuple[int, int]] = set()
    while pending:  # from the last loop on, because earlier loops store what a loop reads
        key = pending.pop()
        done.add(key)
        loop = loops[key]
        wanted: set[Value] = set()

        def need(value: Value) -> None:
            if value in wanted or value.kind not in LOOP_KINDS:
                return
            other = (value.stage, _rows(value))
            if other != key:
                if value.is_stored:
                    return
                if not _is_cheap(value, loop.rows, CHEAP_DEPTH):
                    value.is_stored = True
                    assert other not in done, "a loop reads a later one"
                    if other not in loops:
                        pending.append(other)
                        pending.sort()
                    loop_of(*other).stored.append(value)
                    return
            wanted.add(value)
            for view in value.views:
                need(view.value)

        for value in loop.stored:
            need(value)
        for value in loop.row_sums:
            need(value.views[0].value)
        loop.computed = sorted(wanted, key=position.__getitem__)
    steps: list[Step] = []
    for stage in range(-1, len(program.kernels)):
        if stage >= 0 and program.kernels[stage].kind is not Kind.FENCE:
            if splits_row_sums or program.kernels[stage].kind is not Kind.ROW_SUM:
                steps.append(program.kernels[stage])
        steps += [loops[key] for key in sorted(loops) if key[0] == stage]
    return steps


def _rows(value: Value) -> int:
    """Return the rows of the loop that computes a value."""
    return prod(value.views[0].shape[:-1]) if value.kind is Kind.REDUCE else value.rows


def _is_cheap(value: Value, rows: int, depth: int) -> bool:
    """Return whether a value is computed again from memory rather than stored."""
    return (
        value.kind is Kind.POINT
        and value.operation not in COSTLY
        and depth > 0
        and value.rows == rows
        and value.columns > 1
        and all(view.value.is_in_memory or _is_cheap(view.value, rows, depth - 1) for view in value.views)
    )


def _placed(
    program: Program, steps: list[Step], in_place: dict[Value, Value]
) -> tuple[dict[Value, int], dict[Value, int], int]:
    """Place values in memory, each from its first to its last use, at the first gap that fits."""
    layout = program.layout
    times = uses(program, steps, in_place)
    first, last = ({value: used[end] for value, used in times.items()} for end in (0, -1))
    gradients: dict[Value, int] = {}
    top = 0
    for parameter in program.parameters.values():
        gradients[parameter] = top
        columns = padded_columns(parameter, layout)
        top += up(up(parameter.rows, ROWS) * columns * layout.number_bytes, LINE_BYTES)
    taken: list[tuple[int, int, int, int]] = []
    places: dict[Value, int] = {value: gradients[parameter] for value, parameter in in_place.items()}
    base, peak = top, top
    for value in sorted(first, key=lambda value: (first[value], -size_of(value, layout))):
        size, at = size_of(value, layout), base
        for begin, end, start, stop in sorted(taken):
            if stop < first[value] or last[value] < start or end <= at:
                continue
            if at + size <= begin:
                break
            at = end
        places[value] = at
        taken.append((at, at + size, first[value], last[value]))
        peak = max(peak, at + size)
    widest = max((value.row_stride(layout) for value in first), default=ALIGNED_SLACK)
    return places, gradients, peak + up(ROWS * widest * layout.number_bytes + ALIGNED_SLACK, LINE_BYTES)


def uses(program: Program, steps: list[Step], in_place: dict[Value, Value]) -> dict[Value, list[int]]:
    """Return the numbers of the steps that write and read each value in a tile's memory, in order."""
    times: dict[Value, list[int]] = {}

    def use(value: Value, time: int) -> None:
        if value.kind not in EXTERNAL_KINDS and value not in in_place:
            times.setdefault(value, []).append(time)

    for value in (program.x, program.target, program.weight):
        use(value, 0)
    for time, step in enumerate(steps):
        if isinstance(step, Loop):
            for value in (*step.reads(), *step.stored, *step.row_sums):
                use(value, time)
        else:
            for value in (step, *(view.value for view in step.views)):
                use(value, time)
            if isinstance(step.operation, View):  # indices
                use(step.operation.value, time)
    for value in (program.loss, program.output.value, program.x):
        use(value, len(steps))
    for group in program.gradients.values():
        for term in group:
            use(term.value, len(steps))
    return times


ALIGNED_SLACK = 4096
"""Bytes behind the last value, which kernels read but do not use."""


def padded_columns(value: Value, layout: Layout) -> int:
    """Return the row stride of a gradient: that of a value in the tile's memory."""
    return Value(Kind.PRODUCT, (value.rows, value.columns)).row_stride(layout)


def size_of(value: Value, layout: Layout) -> int:
    """Return the bytes of a value with the rows that kernels write behind it."""
    rows = value.rows + (ROWS if value.kind is Kind.PRODUCT and len(value.shape) == 3 else 0)
    number_bytes = max(layout.number_bytes, 8 if value.is_flat else 0)
    return up(up(rows, ROWS) * value.row_stride(layout) * number_bytes, LINE_BYTES)
