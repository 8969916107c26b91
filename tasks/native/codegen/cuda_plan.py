"""Memory of a generated step on a GPU: what is in a block's shared memory, and what in its part of global memory.

A value is in shared memory from the step that computes it to the last of its uses that follow closely, if there is room, and in
global memory if it is used later, or if there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from depthrate.tasks.native.codegen.lower import Program
from depthrate.tasks.native.codegen.plan import Loop, Step, gradients_in_place, ordered, uses
from depthrate.tasks.native.codegen.values import Kind, Value, up

BLOCK_BYTES = 288
"""Bytes at the start of shared memory that blocks use themselves, as in cuda.h."""
CLOSE_STEPS = 4
"""Steps between two uses of a value that stays in shared memory meanwhile."""
SCRATCH_BYTES = 9 << 10
"""Bytes of shared memory that are left for parts of matrices at every step."""
SLACK_BYTES = 64
"""Bytes behind the last value, which may be read but are not used."""
_PLACED_BYTES = 64


@dataclass(frozen=True)
class Tuning:
    """How a step is divided among a GPU's threads."""

    threads: int = 256
    blocks: int = 2
    """Blocks that a multiprocessor runs at the same time."""
    tile_rows: int = 128
    shared_bytes: int = 113 << 10
    """Bytes of shared memory of a block."""
    largest_tile: int = 32
    """Maximum number of a product's results that a thread computes at a time."""
    unrolled: int = 8
    """Maximum number of a lane's numbers that a loop computes at a time, in one or several rows."""
    copies_ahead: bool = True
    """Whether a product's operands are copied to shared memory during the step in front of it."""


@dataclass
class CudaPlan:
    """Kernels and loops in order, and the places of values in bytes."""

    program: Program
    steps: list[Step]
    in_place: dict[Value, Value]
    """Parameter's gradient that is added up in place -> the parameter."""
    shared: dict[Value, tuple[int, int]]
    """Value -> place in shared memory, and the last step at which it is there."""
    arena: dict[Value, int]
    """Value -> place in the block's part of global memory, behind the gradients."""
    arena_bytes: int
    scratch: list[tuple[int, int]]
    """Place and bytes of each step's scratch memory in shared memory."""
    ahead: dict[int, tuple[int, int]]
    """Product after a loop or sum -> place and bytes of memory that is free during both."""
    shared_bytes: int


def plan_cuda(program: Program, tuning: Tuning) -> CudaPlan:
    """Choose what is computed where."""
    in_place = gradients_in_place(program)
    steps = ordered(program, splits_row_sums=True)
    times = {value: sorted(set(used)) for value, used in uses(program, steps, in_place).items()}
    if len(times[program.x]) > 1 and times[program.x][-1] == len(steps):
        times[program.x].pop()  # only the CPU's padding must stay
    room = tuning.shared_bytes - SCRATCH_BYTES - SLACK_BYTES
    shared = _shared(program, steps, times, room)
    layout = program.layout
    number = layout.number_bytes
    parameters = sum(parameter.rows * parameter.columns for parameter in program.parameters.values())
    base = up(parameters * number, _PLACED_BYTES)
    spans = {
        value: (used[0], used[-1])
        for value, used in times.items()
        if value not in shared or shared[value][1] < used[-1]
    }
    arena, arena_bytes = _first_fit(spans, {value: _size(program, value) for value in spans}, base, None)
    end = tuning.shared_bytes - SLACK_BYTES
    scratch = [_largest_gap(program, shared, times, (time,), end) for time in range(len(steps))]
    ahead = {}
    for time, step in enumerate(steps[1:], 1):
        before = steps[time - 1]
        if isinstance(step, Loop) or step.kind is not Kind.PRODUCT:
            continue
        if isinstance(before, Loop):
            ahead[time] = _largest_gap(program, shared, times, (time - 1, time), end)
        elif before.kind is Kind.ROW_SUM:
            place = scratch[time - 1][0]
            used = place, up(place + tuning.threads * number, _PLACED_BYTES)
            ahead[time] = _largest_gap(program, shared, times, (time - 1, time), end, [used])
    arena_bytes = up(arena_bytes + SLACK_BYTES, 256)
    return CudaPlan(program, steps, in_place, shared, arena, arena_bytes, scratch, ahead, tuning.shared_bytes)


def _largest_gap(
    program: Program,
    shared: dict[Value, tuple[int, int]],
    times: dict[Value, list[int]],
    during: Sequence[int],
    end: int,
    used: Sequence[tuple[int, int]] = (),
) -> tuple[int, int]:
    """Return place and bytes of the largest part of shared memory that no value needs at these steps, and that is not used."""
    present = [
        (place, place + _size(program, value))
        for value, (place, last) in shared.items()
        if any(times[value][0] <= time <= last for time in during)
    ]
    gaps, at = [], up(BLOCK_BYTES, _PLACED_BYTES)
    for begin, stop in [*sorted([*present, *used]), (end, end)]:
        gaps.append((begin - at, at))
        at = max(at, stop)
    size, place = max(gaps)
    return place, size


def _shared(
    program: Program, steps: list[Step], times: dict[Value, list[int]], room: int
) -> dict[Value, tuple[int, int]]:
    """Place values in shared memory."""
    products: set[int] = {
        time for time, step in enumerate(steps) if not isinstance(step, Loop) and step.kind is Kind.PRODUCT
    }
    spans, sizes = {}, {}
    for value, used in times.items():
        close = [used[0]]
        for time in used[1:]:
            if time - close[-1] > CLOSE_STEPS:
                break
            close.append(time)
        can_be_twice = value.kind in (Kind.PRODUCT, Kind.POINT, Kind.REDUCE) or value is program.x
        if close[-1] == used[-1] or (can_be_twice and len(close) > 1):
            spans[value], sizes[value] = (close[0], close[-1]), _size(program, value)

    def rank(value: Value) -> tuple[bool, bool, int]:
        in_products = any(spans[value][0] <= time <= spans[value][1] and time in products for time in times[value])
        return sizes[value] > 2048, not in_products, spans[value][0]

    order = sorted(spans, key=rank)
    places, _ = _first_fit({value: spans[value] for value in order}, sizes, BLOCK_BYTES, room)
    return {value: (place, spans[value][1]) for value, place in places.items()}


def _first_fit(
    spans: dict[Value, tuple[int, int]], sizes: dict[Value, int], base: int, room: int | None
) -> tuple[dict[Value, int], int]:
    """Place values, each at the first gap that fits during its span. Those that do not fit in a limited room are left out."""
    taken: list[tuple[int, int, int, int]] = []
    places: dict[Value, int] = {}
    top = base
    for value, (first, last) in spans.items():
        at, size = up(base, _PLACED_BYTES), sizes[value]
        for begin, end, start, stop in sorted(taken):
            if stop < first or last < start or end <= at:
                continue
            if at + size <= begin:
                break
            at = end
        if room is not None and at + size > room:
            continue
        places[value] = at
        taken.append((at, at + size, first, last))
        top = max(top, at + size)
    return places, top


def _size(program: Program, value: Value) -> int:
    number = 8 if value is program.x and value.is_flat else program.layout.number_bytes
    return up(value.rows * value.row_stride(program.layout) * number, _PLACED_BYTES)
