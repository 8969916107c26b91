"""Kernels of a planned step as C++, and the table of their calls.

Each kernel and loop is a function of the addresses that it reads and writes, so that equal blocks of a network, and networks of
equal blocks, share their code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthrate.tasks.native.codegen.loop_text import (
    LoopText,
    Shape,
    flat_axes,
    is_index,
    literal,
    position_of,
)
from depthrate.tasks.native.codegen.lower import Part
from depthrate.tasks.native.codegen.plan import LINE_BYTES, Loop, Plan, padded_columns
from depthrate.tasks.native.codegen.values import (
    ALIGNED,
    ROWS,
    Kind,
    Value,
    View,
    is_plain,
    is_row_number,
    merged_rows,
    up,
    with_rows,
)
from depthrate.tasks.native.table import ALIGNMENT, Base, Kernel, Piece, Statement, StepTable

CACHED_BYTES = 24 << 10
"""Bytes of a right-hand side that products read in place, as in tiles.h."""
PANEL_NUMBERS = 64
"""Numbers of a panel's rows on the processor with the widest vectors."""


INDEX_BYTES = 8


class Place(NamedTuple):
    """A place in memory, which a kernel is given as an address."""

    base: Base
    at: int = 0
    """Bytes behind the base."""
    item: str = "Number"
    """Type of the numbers there."""

    @property
    def passed(self) -> tuple[int, int]:
        """The argument in a table."""
        return int(self.base), self.at


class KernelCall(NamedTuple):
    """A call of a kernel."""

    kernel: Kernel
    places: Sequence[Place]


NOTHING = Place(Base.NOTHING)
PANEL = Place(Base.NOTHING, 1)
"""Memory for the panels of one product, which has its place once all products are known."""


def emit(plan: Plan, shape: Shape) -> StepTable:
    """Return the kernels of a planned step and the table of their calls."""
    return _Emitter(plan, shape).table()


class _Emitter:
    def __init__(self, plan: Plan, shape: Shape):
        self.plan, self.program, self.shape = plan, plan.program, shape
        self.layout = plan.program.layout
        self.constants: dict[Value, int] = {}
        """Constant -> its place."""
        self.constant_bytes = bytearray()
        self.num_zeros = 0
        """Numbers of a row of zeros that kernels read."""
        self.prepared: dict[Any, Place] = {}
        """Key of numbers that are prepared once a step -> their place."""
        self.preparation: list[KernelCall] = []
        self.num_bytes = plan.num_bytes
        self.panel_numbers = 0

    def table(self) -> StepTable:
        started = self._started_by_products()
        calls = [self._inputs(), *(call for step in self.plan.steps for call in self._step(step, started))]
        calls += [*self._gradient_terms(), self._outputs()]
        parameters = self.program.parameters
        clears = [
            self._clear(Place(Base.ARENA, self.plan.gradients[parameter]), self._gradient_bytes(parameter))
            for parameter in parameters.values()
            if parameter not in started.values()
        ]
        panel = self._room(self.panel_numbers)
        kernels: dict[Kernel, int] = {}

        def statements(calls: Iterable[KernelCall]) -> list[Statement]:
            return [
                Statement(
                    kernels.setdefault(call.kernel, len(kernels)),
                    [(panel if place == PANEL else place).passed for place in call.places],
                )
                for call in calls
            ]

        prepared, cleared, tile = map(statements, (self.preparation, clears, calls))
        return StepTable(
            kernels=[*kernels],
            prepared=prepared,
            cleared=cleared,
            tile=tile,
            pieces=[self._piece(name, parameter) for name, parameter in parameters.items()],
            samples=self.shape.samples,
            arena_bytes=self.num_bytes,
            zero_bytes=self.num_zeros * self.layout.number_bytes,
            constants=bytes(self.constant_bytes),
        )

    def _piece(self, name: str, parameter: Value) -> Piece:
        """Return a parameter with its gradient, as one row if its rows are not padded."""
        row, group = padded_columns(parameter, self.layout), self.shape.decay_groups[name]
        gradient, rows, columns = self.plan.gradients[parameter], parameter.rows, parameter.columns
        if row == columns:
            return Piece(1, rows * columns, parameter.address, gradient, 0, group)
        return Piece(rows, columns, parameter.address, gradient, row, group)

    # ---- Samples, losses and outputs ----

    def _inputs(self) -> KernelCall:
        """Return the call that reads a tile's samples and labels."""
        program, shape = self.program, self.shape
        item = "int64_t" if program.x.is_flat else "Number"
        inputs, row = prod(program.x.shape[1:]), program.x.row_stride(self.layout)
        classes, target_row = program.target.columns, program.target.row_stride(self.layout)
        target = f"{classes}, Number({float(shape.label_smoothing)!r}), p1, {target_row}"
        body = (
            f"  gather_samples((const {item}*)batch.x, batch, {shape.samples}, {inputs}, ({item}*)p0, {row});\n"
            f"  gather_targets(batch.labels, {int(shape.has_targets)}, batch, {shape.samples}, {shape.outputs}, {target});\n"
            f"  give_weights(batch, {shape.samples}, {shape.outputs}, p2);"
        )
        return self._call(body, [self._place(value) for value in (program.x, program.target, program.weight)])

    def _outputs(self) -> KernelCall:
        """Return the call that counts correct outputs and adds up losses."""
        output, outputs = self.program.output.value, self.shape.outputs
        row = output.row_stride(self.layout)
        body = (
            f"  if (batch.correct) *batch.correct += "
            f"count_correct(batch.labels, batch, {outputs}, {self.program.target.columns}, p0, {row});\n"
            f"  batch.loss = sum_of_losses(batch, {outputs}, p1);"
        )
        return self._call(body, [self._place(output), self._place(self.program.loss)])

    # ---- Memory ----

    def _room(self, numbers: int) -> Place:
        place = Place(Base.ARENA, self.num_bytes)
        self.num_bytes += up(numbers * self.layout.number_bytes, LINE_BYTES) + 2 * LINE_BYTES
        return place

    def _place(self, value: Value) -> Place:
        if value.kind is Kind.PARAMETER:
            return Place(Base.THETA, value.address * self.layout.number_bytes)
        if value.kind is Kind.STATE:
            return Place(Base.STATE, value.address * self.layout.number_bytes)
        if value.kind is Kind.CONSTANT:
            return Place(Base.CONSTANTS, self._constant(value), "const int64_t" if is_index(value) else "Number")
        item = "const int64_t" if value is self.program.x and value.is_flat else "Number"
        return Place(Base.ARENA, self.plan.places[value], item)

    def _behind(self, place: Place, seen: Tensor) -> Place:
        """Return the place of a tensor's first number, from that of the first number of its storage."""
        item_bytes = self.layout.number_bytes if place.item == "Number" else INDEX_BYTES
        return place._replace(at=place.at + int(seen.storage_offset()) * item_bytes)

    def _seen(self, view: View) -> Place:
        return self._behind(self._place(view.value), view.seen)

    def _padded_place(self, value: Value) -> Place:
        """Return the place of a value, of a parameter a copy that may be read beyond its end."""
        if value.kind not in (Kind.PARAMETER, Kind.STATE):
            return self._place(value)
        return self._copied_once(value, self._place(value), prod(value.shape))

    def _copied_once(self, key: Any, place: Place, numbers: int) -> Place:
        """Return the place of an aligned copy of a trial's numbers, made once per step, that may be read beyond its end."""
        if key not in self.prepared:
            copy = self.prepared[key] = self._room(numbers + 4 * ALIGNED)
            self.preparation.append(self._call(f"  memcpy(p1, p0, {numbers} * sizeof(Number));", [place, copy]))
        return self.prepared[key]

    def _gradient_bytes(self, parameter: Value) -> int:
        return parameter.rows * padded_columns(parameter, self.layout) * self.layout.number_bytes

    def _constant(self, value: Value) -> int:
        if value not in self.constants:
            assert value.data is not None
            dtype = torch.float32 if self.layout.number_bytes == 4 else torch.float64
            numbers = value.data.flatten().to(torch.int64 if is_index(value) else dtype)
            # vectors are read beyond the end
            content = numbers.numpy().tobytes() + bytes(4 * ALIGNED * self.layout.number_bytes)
            self.constants[value] = len(self.constant_bytes)
            self.constant_bytes += content.ljust(up(len(content), ALIGNMENT), b"\0")
        return self.constants[value]

    # ---- Kernels ----

    def _call(self, body: str, places: Sequence[Place]) -> KernelCall:
        """Return a call of a function of the addresses p0, p1, ... of places."""
        return KernelCall(Kernel(tuple(place.item for place in places), body), places)

    def _clear(self, place: Place, num_bytes: int) -> KernelCall:
        return self._call(f"  memset(p0, 0, {num_bytes});", [place])

    def _step(self, step: Loop | Value, started: dict[Value, Value]) -> list[KernelCall]:
        if isinstance(step, Loop):
            zeros = [
                self._clear(self._place(value), self._bytes(value))
                for value in step.row_sums
                if value not in self.plan.in_place
            ]
            body, places = _CpuLoop(self, step).text()
            return [*zeros, self._call(body, places)]
        if step.kind is Kind.PRODUCT:
            return [self._product(step, started)]
        if step.kind is Kind.COPY:
            return self._copy(step)
        return self._table(step)

    def _bytes(self, value: Value) -> int:
        return value.rows * value.row_stride(self.layout) * self.layout.number_bytes

    def _started_by_products(self) -> dict[Value, Value]:
        """Return the product that is the first to add to each parameter's gradient, where a product is."""
        first: dict[Value, Value] = {}
        for step in self.plan.steps:
            for value in step.row_sums if isinstance(step, Loop) else [step]:
                if value in self.plan.in_place:
                    first.setdefault(self.plan.in_place[value], value)
        return {value: parameter for parameter, value in first.items() if value.kind is Kind.PRODUCT}

    def _product(self, value: Value, started: dict[Value, Value]) -> KernelCall:
        left, right = value.views
        a, b = left.seen, right.seen
        count, a_step, b_step = 1, 0, 0
        if a.ndim == 3:
            count, a_step, b_step = a.shape[0], a.stride(0), b.stride(0)
            a, b = a[0], b[0]
        (m, k), n = a.shape, b.shape[1]
        row = value.row_stride(self.layout)
        prepare, right_hand, right_place = self._right_hand(right, b, k, n)
        if value in self.plan.in_place:
            start = Place(Base.START) if value in started else NOTHING
        elif value.start is not None:
            key = (value.start.value, value.start.seen.storage_offset(), n)
            start = self._copied_once(key, self._seen(value.start), n)
        else:
            start = Place(Base.ZERO_ROWS)
        self.num_zeros = max(self.num_zeros, up(n, ALIGNED))
        places = [self._seen(left), right_place, self._place(value), start, PANEL]
        call = (
            f"product<{k}, vectors({n})>({up(m, ROWS)}, {k}, Left{{p0, {a.stride(0)}, {a.stride(1)}}}, {right_hand}, "
            f"p2, {row}, p3, nothing, nothing);"
        )
        call = f"{prepare}{call}"
        if count > 1:
            call = f"for (long z = 0; z < {count}; z++, p0 += {a_step}, p1 += {b_step}, p2 += {m * row}) {{ {call} }}"
        return self._call(f"  // {count} x [{m}, {k}] [{k}, {n}]\n  {call}", places)

    def _right_hand(self, right: View, b: Tensor, k: int, n: int) -> tuple[str, str, Place]:
        """Return how a product's right-hand side is prepared and read, and its place."""
        row, column = b.stride()
        place, numbers = self._seen(right), up(n, PANEL_NUMBERS) * k
        is_outside = right.value.kind in (Kind.PARAMETER, Kind.STATE)
        is_straight = column == 1 or n == 1
        move = f"rows_to_panels({{0}}, {row}, {k}, {n}, {{1}});"
        if not is_straight:
            move = f"transposed_to_panels({{0}}, {column}, {n}, {k}, {{1}});"
        if is_straight and not (n == 1 and is_outside):
            fits = n % ALIGNED == 0 and k * row * self.layout.number_bytes <= CACHED_BYTES
            if not is_outside or fits:
                return "", f"rows_of(p1, {row})", place
        if is_outside and right.seen.ndim == 2:
            key = (right.value, b.storage_offset(), tuple(b.shape), b.stride())
            if key not in self.prepared:
                panels = self.prepared[key] = self._room(numbers)
                self.preparation.append(self._call(f"  {move.format('p0', 'p1')}", [place, panels]))
            return "", f"panels_of(p1, {k})", self.prepared[key]
        self.panel_numbers = max(self.panel_numbers, numbers)
        return move.format("p1", "p4") + " ", f"panels_of(p4, {k})", place

    def _copy(self, value: Value) -> list[KernelCall]:
        parts: Sequence[Part] = value.operation
        calls = []
        covered = sum(place.numel() for _, place, adds in parts if not adds)
        if covered < prod(value.shape):
            calls.append(self._clear(self._place(value), self._bytes(value)))
        return [*calls, *(self._part(view, place, self._place(value), adds) for view, place, adds in parts)]

    def _part(self, view: View, seen: Tensor, place: Place, adds: bool) -> KernelCall:
        return self._call(_moved(view.seen, seen, adds), [self._seen(view), self._behind(place, seen)])

    def _table(self, value: Value) -> list[KernelCall]:
        view, index, n, count = value.views[0], value.operation, value.columns, prod(value.operation.shape)
        entry = f"p2[{position_of(flat_axes(index.seen), 'r')}]"
        row = value.row_stride(self.layout)
        places = [self._place(value), self._seen(view), self._seen(index)]
        if value.kind is Kind.LOOK_UP:
            table = f"p1 + {entry} * {view.seen.stride(0)}"
            body = f"  for (long r = 0; r < {count}; r++) memcpy(p0 + r * {row}, {table}, {n} * sizeof(Number));"
            return [self._call(body, places)]
        source = f"p1 + {position_of(merged_rows(view.seen), 'r')}"
        body = (
            f"  for (long r = 0; r < {count}; r++) {{ Number* to = p0 + {entry} * {row}; const Number* from = {source}; "
            f"for (long j = 0; j < {n}; j++) to[j] += from[j]; }}"
        )
        zero = [] if value in self.plan.in_place else [self._clear(self._place(value), self._bytes(value))]
        return [*zero, self._call(body, places)]

    def _gradient_terms(self) -> list[KernelCall]:
        """Add the terms that no kernel adds in place."""
        calls = []
        for name, group in self.program.gradients.items():
            parameter = self.program.parameters[name]
            seen = with_rows(parameter.shape, padded_columns(parameter, self.layout))
            place = Place(Base.ARENA, self.plan.gradients[parameter])
            for term in group:
                if term.value not in self.plan.in_place:
                    view = View(term.value, term.seen.expand(parameter.shape))
                    calls.append(self._part(view, seen, place, True))
        return calls


class _CpuLoop(LoopText):
    """The text of a loop over rows whose passes go over vectors, four rows at a time."""

    def __init__(self, emitter: _Emitter, loop: Loop):
        super().__init__(loop, emitter.layout)
        self.emitter = emitter
        self.places: list[Place] = []
        self._pointers: dict[Place, str] = {}
        self.rest = loop.rows % ROWS

    def text(self) -> tuple[str, list[Place]]:
        """Return a function's body, and the places whose addresses it is given."""
        body = "\n    ".join([*self._kept_rows(), *self._passes()])
        return f"  for (long i = 0; i < {self.loop.rows}; i += ROWS) {{\n    {body}\n  }}", self.places

    def _kept(self, value: Value) -> str:
        kind = "Integers" if value.is_boolean else "Vector"
        return f"{kind} k{self.names[value]}[ROWS][vectors({value.columns})];"

    def _pass(self, phase: int) -> list[str]:
        lines = super()._pass(phase)
        for value in self._sums_of(phase):
            if value.columns == 1:
                lines += self._number_sum(value)
        return lines

    # ---- Vectors of a row ----

    def _columns(self, width: int, computed: Sequence[Value], sums: Sequence[Value]) -> list[str]:
        before: list[str] = []
        body: list[str] = []
        seen: dict[Any, str] = {}
        tail = width % ALIGNED

        def operand(item: View | float, masks: bool) -> str:
            if not isinstance(item, View):
                return f"all<Vector>({literal(item)})"
            value, is_mask = item.value, False
            if not self._own(item):
                text = loaded(item)
            elif value.columns == 1:
                text = f"all<Vector>(s{self.names[value]}[r]{' ? 1 : 0' if value.is_boolean else ''})"
            else:
                is_here = self.phase[value] == current and value in computed
                text = f"t{self.names[value]}" if is_here else f"k{self.names[value]}[r][j]"
                is_mask = value.is_boolean
            if masks and value.is_boolean and not is_mask:
                return f"({text} != 0)"
            return f"to_number({text})" if is_mask and not masks else text

        def loaded(view: View) -> str:
            key = (view.value, view.seen.storage_offset(), view.shape, view.seen.stride())
            if key not in seen:
                name = f"l{len(seen)}"
                seen[key] = name
                pointer = self._pointer(view)
                position = position_of(merged_rows(view.seen), "q")
                if view.seen.shape[-1] == 1 or view.seen.stride(-1) == 0:
                    body.append(f"const Vector {name} = all<Vector>({pointer}[{position}]);")
                else:
                    body.append(f"const Vector {name} = load({pointer} + {position}, j);")
            return seen[key]

        current = self.phase[computed[0]] if computed else (self._sum_phase(sums[0]) if sums else 0)
        for value in computed:
            name = self.names[value]
            if value.kind is Kind.REDUCE:
                neutral = "-INFINITY" if value.operation == "maximum" else "0"
                before.append(
                    f"Vector r{name}[ROWS]; for (int r = 0; r < ROWS; r++) r{name}[r] = all<Vector>({neutral});"
                )
                text = operand(value.operands[0], False)
                if tail:
                    text = f"(j == vectors({width}) - 1 ? within({width} - j * LANES, {text}, {neutral}) : {text})"
                if value.operation == "maximum":
                    body.append(f"{{ const Vector e = {text}; r{name}[r] = e > r{name}[r] ? e : r{name}[r]; }}")
                else:
                    body.append(f"r{name}[r] += {text};")
                continue
            body.append(f"const auto t{name} = {self._expression(value, operand)};")
            if self._is_kept(value):
                body.append(f"k{name}[r][j] = t{name};")
            if value in self.loop.stored:
                stored = f"to_number(t{name})" if value.is_boolean else f"t{name}"
                address = self._pointer_to(value)
                body.append(f"at({address} + (i + r) * {value.row_stride(self.layout)}, j) = {stored};")
        starts: list[str] = []
        ends: list[str] = []
        for value in sums:
            text, pointer = operand(value.operands[0], False), self._pointer_to(value)
            guard, position = self._guard(), self._sum_position(value)
            if position == "0":
                name = f"c{len(starts)}"
                starts.append(f"Vector {name} = {{}};")
                body.append(f"{guard}{name} += {text};")
                ends.append(f"at({pointer}, j) += {name};")
            else:
                body.append(f"{guard}at({pointer} + {position}, j) += {text};")
        if not body:
            return before
        rows = f"const long q = {self._row()};"
        inner = "\n        ".join([rows, *body])
        return [
            *before,
            f'_Pragma("GCC unroll 4") for (long j = 0; j < vectors({width}); j++) {{ {" ".join(starts)}',
            f'  _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {{\n        {inner}\n      }} {" ".join(ends)} }}',
        ]

    def _row(self, number: int | str = "r") -> str:
        """Return the row of a number of the four, the last one for rows behind it."""
        row = f"i + {number}"
        return f"{row} < {self.loop.rows} ? {row} : {self.loop.rows - 1}" if self.rest else row

    def _guard(self) -> str:
        return f"if (i + r < {self.loop.rows}) " if self.rest else ""

    # ---- Numbers of a row ----

    def _number(self, value: Value) -> list[str]:
        name = self.names[value]
        if value.kind is Kind.REDUCE and self._width(value) > 1:
            function = "maxima" if value.operation == "maximum" else "sums"
            text = f"{function}(r{name})"
        elif value.kind is Kind.REDUCE:
            text = self._four(value.operands[0], False)
        else:
            text = self._expression(value, self._four)
        lines = [f"const auto s{name} = {text};"]
        if value in self.loop.stored:
            stored = f"to_number(s{name})" if value.is_boolean else f"s{name}"
            lines.append(f"*(FourAnywhere*)({self._pointer_to(value)} + i) = {stored};")
        return lines

    def _four(self, item: View | float, masks: bool) -> str:
        if not isinstance(item, View):
            return f"all<Four>({literal(item)})"
        value = item.value
        if self._own(item):
            text = f"s{self.names[value]}"
            return f"to_number({text})" if value.is_boolean and not masks else text
        pointer = self._pointer(item)
        is_run = is_plain(item, self.layout) or is_row_number(item, self.layout)
        if is_run and value.row_stride(self.layout) == 1:
            text = f"Four(*(const FourAnywhere*)({pointer} + i))"
        else:
            positions = [position_of(merged_rows(item.seen), f"({self._row(r)})") for r in range(ROWS)]
            text = f"Four{{{', '.join(f'{pointer}[{position}]' for position in positions)}}}"
        return f"({text} != 0)" if value.is_boolean and masks else text

    def _number_sum(self, value: Value) -> list[str]:
        text, target = self._four(value.operands[0], False), f"{self._pointer_to(value)}[{self._sum_position(value)}]"
        return [f"{{ const Four e = {text}; for (int r = 0; r < ROWS; r++) {self._guard()}{target} += e[r]; }}"]

    def _sum_position(self, value: Value) -> str:
        """Return the position of a row's sum."""
        natural = value.natural(self.layout)
        strides = [0 if size == 1 else stride for size, stride in zip(value.shape, natural.stride(), strict=True)]
        place = torch.empty_strided(value.views[0].shape, [*strides[:-1], 1], device="meta")
        return position_of(merged_rows(place), "(i + r)")

    # ---- Addresses ----

    def _pointer(self, view: View) -> str:
        return self._named(self.emitter._behind(self.emitter._padded_place(view.value), view.seen))

    def _pointer_to(self, value: Value) -> str:
        return self._named(self.emitter._place(value))

    def _named(self, place: Place) -> str:
        if place not in self._pointers:
            self._pointers[place] = f"p{len(self.places)}"
            self.places.append(place)
        return self._pointers[place]


def _moved(source: Tensor, place: Tensor, adds: bool) -> str:
    """Return loops that move the numbers of one tensor to another of the same shape."""
    axes = [
        (size, to, of) for size, to, of in zip(place.shape, place.stride(), source.stride(), strict=True) if size > 1
    ]
    axes.sort(key=lambda axis: (-axis[1], -axis[2]))
    merged: list[tuple[int, int, int]] = []
    for size, to, of in axes:
        if merged and merged[-1][1] == size * to and merged[-1][2] == size * of:
            merged[-1] = (merged[-1][0] * size, to, of)
        else:
            merged.append((size, to, of))
    names = [f"i{index}" for index in range(len(merged))]
    loops = "".join(
        f"for (long {name} = 0; {name} < {size}; {name}++) " for name, (size, *_) in zip(names, merged, strict=True)
    )
    target = " + ".join(f"{name} * {stride}" for name, (_, stride, _) in zip(names, merged, strict=True)) or "0"
    origin = " + ".join(f"{name} * {stride}" for name, (*_, stride) in zip(names, merged, strict=True)) or "0"
    return f"  {loops}p1[{target}] {'+=' if adds else '='} p0[{origin}];"
