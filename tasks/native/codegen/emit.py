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

from depthrate.tasks.native.codegen.emitter import (
    Emitter,
    Flags,
    Language,
    LoopText,
    Pass,
    Reduction,
    Shape,
    is_index,
    is_repeated,
    position_of,
)
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
LANGUAGE = Language(
    integers="const int64_t",
    numbers="Vector",
    masks="Integers",
    as_masks="{}",
    each_row="for (int r = 0; r < {rows}; r++)",
    column="j",
    column_constant="all<Vector>({})",
    row_constant="all<Four>({})",
    row_number="s{}",
    row_declaration="const auto ",
    reductions={
        "maximum": Reduction(
            neutral="-INFINITY",
            start="all<Vector>(-INFINITY)",
            step="{{ const Vector e = {text}; {result} = e > {result} ? e : {result}; }}",
            function="maxima",
        ),
        "sum": Reduction(neutral="0", start="all<Vector>(0)", step="{result} += {text};", function="sums"),
    },
    entry="{}",
    look_up=(
        "  for (long r = 0; r < {count}; r++) "
        "memcpy(p0 + r * {row}, p1 + {entry} * {table_row}, {columns} * sizeof(Number));"
    ),
    scatter=(
        "  for (long r = 0; r < {count}; r++) {{ Number* to = p0 + {entry} * {row}; const Number* from = p1 + {source}; "
        "for (long j = 0; j < {columns}; j++) to[j] += from[j]; }}"
    ),
    adds="+=",
)
"""C++ of vectors, see `generated.h`."""


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

    def behind(self, numbers: int, item_bytes: int) -> Place:
        """Return the place of a number that is this many numbers behind."""
        return self._replace(at=self.at + numbers * item_bytes)


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


class _Emitter(Emitter[Place, KernelCall]):
    language = LANGUAGE

    def __init__(self, plan: Plan, shape: Shape):
        super().__init__(plan, shape)
        self.plan = plan
        self.started = self._started_by_products()
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
        calls = [self._inputs(), *(call for step in self.plan.steps for call in self._step(step))]
        calls += [*self._gradient_terms(), self._outputs()]
        parameters = self.program.parameters
        clears = [
            self._zero(self._gradient(parameter)[0], parameter.rows * padded_columns(parameter, self.layout))
            for parameter in parameters.values()
            if parameter not in self.started.values()
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
        return self.call(body, [self.place(value) for value in (program.x, program.target, program.weight)])

    def _outputs(self) -> KernelCall:
        """Return the call that counts correct outputs and adds up losses."""
        output, outputs = self.program.output.value, self.shape.outputs
        row = output.row_stride(self.layout)
        body = (
            f"  if (batch.correct) *batch.correct += "
            f"count_correct(batch.labels, batch, {outputs}, {self.program.target.columns}, p0, {row});\n"
            f"  batch.loss = sum_of_losses(batch, {outputs}, p1);"
        )
        return self.call(body, [self.place(output), self.place(self.program.loss)])

    # ---- Memory ----

    def _room(self, numbers: int) -> Place:
        place = Place(Base.ARENA, self.num_bytes)
        self.num_bytes += up(numbers * self.layout.number_bytes, LINE_BYTES) + 2 * LINE_BYTES
        return place

    def place(self, value: Value) -> Place:
        if value.kind is Kind.PARAMETER:
            return Place(Base.THETA, value.address * self.layout.number_bytes)
        if value.kind is Kind.STATE:
            return Place(Base.STATE, value.address * self.layout.number_bytes)
        if value.kind is Kind.CONSTANT:
            return Place(Base.CONSTANTS, self._constant(value), self.item(value))
        return Place(Base.ARENA, self.plan.places[value], self.item(value))

    def padded(self, view: View) -> Place:
        """Return the place of a view's first number, of a parameter's view in a copy that may be read beyond its end."""
        value, place = view.value, self.place(view.value)
        if value.kind in (Kind.PARAMETER, Kind.STATE):
            place = self._copied_once(value, place, prod(value.shape))
        return self._behind(place, view.seen)

    def _copied_once(self, key: Any, place: Place, numbers: int) -> Place:
        """Return the place of an aligned copy of a trial's numbers, made once per step, that may be read beyond its end."""
        if key not in self.prepared:
            copy = self.prepared[key] = self._room(numbers + 4 * ALIGNED)
            self.preparation.append(self.call(f"  memcpy(p1, p0, {numbers} * sizeof(Number));", [place, copy]))
        return self.prepared[key]

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

    def call(self, body: str, places: Sequence[Place], flags: Flags = ()) -> KernelCall:
        """Return a call of a function of the addresses p0, p1, ... of places. No kernel has flags."""
        return KernelCall(Kernel(tuple(place.item for place in places), body), places)

    def _zero(self, place: Place, numbers: int) -> KernelCall:
        return self.call(f"  memset(p0, 0, {numbers * self.layout.number_bytes});", [place])

    def _loop(self, loop: Loop) -> list[KernelCall]:
        before = [call for value in loop.row_sums for call in self._start_of_sum(value)[0]]
        return [*before, self.call(*_CpuLoop(self, loop).text())]

    def _start_of_sum(self, value: Value) -> tuple[list[KernelCall], Flags]:
        return [] if value in self.in_place else [self._clear(value)], ()

    def _gradient(self, parameter: Value) -> tuple[Place, Tensor]:
        seen = with_rows(parameter.shape, padded_columns(parameter, self.layout))
        return Place(Base.ARENA, self.plan.gradients[parameter]), seen

    def _flags_of_term(self, parameter: Value) -> Flags:
        return ()

    def _started_by_products(self) -> dict[Value, Value]:
        """Return the product that is the first to add to each parameter's gradient, where a product is."""
        first: dict[Value, Value] = {}
        for step in self.plan.steps:
            for value in step.row_sums if isinstance(step, Loop) else [step]:
                if value in self.in_place:
                    first.setdefault(self.in_place[value], value)
        return {value: parameter for parameter, value in first.items() if value.kind is Kind.PRODUCT}

    def _product(self, value: Value) -> KernelCall:
        left, right = value.views
        matrices = self._matrices(value)
        a, b = matrices.left, matrices.right
        (m, k), n = a.shape, b.shape[1]
        row = self.row(value)
        prepare, right_hand, right_place = self._right_hand(right, b, k, n)
        if value in self.in_place:
            start = Place(Base.START) if value in self.started else NOTHING
        elif value.start is not None:
            key = (value.start.value, value.start.seen.storage_offset(), n)
            start = self._copied_once(key, self.at(value.start), n)
        else:
            start = Place(Base.ZERO_ROWS)
        self.num_zeros = max(self.num_zeros, up(n, ALIGNED))
        places = [self.at(left), right_place, self.place(value), start, PANEL]
        call = (
            f"product<{k}, vectors({n})>({up(m, ROWS)}, {k}, Left{{p0, {a.stride(0)}, {a.stride(1)}}}, {right_hand}, "
            f"p2, {row}, p3, nothing, nothing);"
        )
        call = f"{prepare}{call}"
        if matrices.num_pairs > 1:
            steps = f"p0 += {matrices.left_step}, p1 += {matrices.right_step}, p2 += {m * row}"
            call = f"for (long z = 0; z < {matrices.num_pairs}; z++, {steps}) {{ {call} }}"
        return self.call(f"{matrices.note}  {call}", places)

    def _right_hand(self, right: View, b: Tensor, k: int, n: int) -> tuple[str, str, Place]:
        """Return how a product's right-hand side is prepared and read, and its place."""
        row, column = b.stride()
        place, numbers = self.at(right), up(n, PANEL_NUMBERS) * k
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
                self.preparation.append(self.call(f"  {move.format('p0', 'p1')}", [place, panels]))
            return "", f"panels_of(p1, {k})", self.prepared[key]
        self.panel_numbers = max(self.panel_numbers, numbers)
        return move.format("p1", "p4") + " ", f"panels_of(p4, {k})", place

    def _moved(self, axes: Sequence[tuple[int, int, int]], sign: str) -> str:
        merged: list[tuple[int, int, int]] = []
        for size, to, of in axes:
            if merged and merged[-1][1] == size * to and merged[-1][2] == size * of:
                merged[-1] = (merged[-1][0] * size, to, of)
            else:
                merged.append((size, to, of))
        loops = "".join(
            f"for (long i{index} = 0; i{index} < {size}; i{index}++) " for index, (size, *_) in enumerate(merged)
        )
        target = " + ".join(f"i{index} * {stride}" for index, (_, stride, _) in enumerate(merged)) or "0"
        origin = " + ".join(f"i{index} * {stride}" for index, (*_, stride) in enumerate(merged)) or "0"
        return f"  {loops}p1[{target}] {sign} p0[{origin}];"


class _CpuLoop(LoopText[Place]):
    """The text of a loop over rows whose passes go over vectors, four rows at a time."""

    rows = "ROWS"

    def __init__(self, emitter: _Emitter, loop: Loop):
        super().__init__(emitter, loop)
        self.emitter = emitter
        self.rest = loop.rows % ROWS

    def text(self) -> tuple[str, list[Place]]:
        """Return a function's body, and the places whose addresses it is given."""
        body = "\n    ".join([*self._kept_rows(), *self._passes()])
        return f"  for (long i = 0; i < {self.loop.rows}; i += ROWS) {{\n    {body}\n  }}", self.places

    def _numbers(self, width: int) -> str:
        return f"vectors({width})"

    def _pass(self, phase: int) -> list[str]:
        lines = super()._pass(phase)
        for value in self._sums_of(phase):
            if value.columns == 1:
                lines += self._number_sum(value)
        return lines

    # ---- Vectors of a row ----

    def _load(self, view: View, current: Pass) -> str:
        name, is_new = current.name(view)
        if is_new:
            pointer, position = self._pointer(view), position_of(merged_rows(view.seen), "q")
            repeated, adjacent = f"all<Vector>({pointer}[{position}])", f"load({pointer} + {position}, j)"
            current.body.append(f"const Vector {name} = {repeated if is_repeated(view.seen) else adjacent};")
        return name

    def _repeated(self, value: Value) -> tuple[str, bool]:
        return f"all<Vector>(s{self.names[value]}[r]{' ? 1 : 0' if value.is_boolean else ''})", False

    def _inside(self, text: str, neutral: str, width: int) -> str:
        if width % ALIGNED == 0:
            return text
        return f"(j == vectors({width}) - 1 ? within({width} - j * LANES, {text}, {neutral}) : {text})"

    def _store(self, value: Value, text: str, current: Pass) -> None:
        address = self._pointer_to(value)
        current.body.append(f"at({address} + (i + r) * {value.row_stride(self.layout)}, j) = {text};")

    def _add_to_sums(self, sums: Sequence[Value], current: Pass) -> None:
        for value in sums:
            text, pointer = self._operand(value.operands[0], False, current), self._pointer_to(value)
            guard, position = self._guard(), self._sum_position(value)
            if position == "0":
                name = f"c{len(current.opening)}"
                current.opening.append(f"Vector {name} = {{}};")
                current.body.append(f"{guard}{name} += {text};")
                current.closing.append(f"at({pointer}, j) += {name};")
            else:
                current.body.append(f"{guard}at({pointer} + {position}, j) += {text};")

    def _text_of(self, current: Pass) -> list[str]:
        opening, closing = " ".join(current.opening), " ".join(current.closing)
        inner = "\n        ".join([f"const long q = {self._row()};", *current.body])
        return [
            f'_Pragma("GCC unroll 4") for (long j = 0; j < vectors({current.width}); j++) {{ {opening}',
            f'  _Pragma("GCC unroll 4") {self.each_row} {{\n        {inner}\n      }} {closing} }}',
        ]

    def _row(self, number: int | str = "r") -> str:
        """Return the row of a number of the four, the last one for rows behind it."""
        row = f"i + {number}"
        return f"{row} < {self.loop.rows} ? {row} : {self.loop.rows - 1}" if self.rest else row

    def _guard(self) -> str:
        return f"if (i + r < {self.loop.rows}) " if self.rest else ""

    # ---- Numbers of a row ----

    def _reduced(self, value: Value, function: str) -> str:
        return f"{function}(r{self.names[value]})"

    def _store_number(self, value: Value, text: str) -> list[str]:
        return [f"*(FourAnywhere*)({self._pointer_to(value)} + i) = {text};"]

    def _load_number(self, view: View) -> str:
        value, pointer = view.value, self._pointer(view)
        is_run = is_plain(view, self.layout) or is_row_number(view, self.layout)
        if is_run and value.row_stride(self.layout) == 1:
            return f"Four(*(const FourAnywhere*)({pointer} + i))"
        positions = [position_of(merged_rows(view.seen), f"({self._row(r)})") for r in range(ROWS)]
        return f"Four{{{', '.join(f'{pointer}[{position}]' for position in positions)}}}"

    def _number_sum(self, value: Value) -> list[str]:
        text = self._operand_number(value.operands[0], False)
        target = f"{self._pointer_to(value)}[{self._sum_position(value)}]"
        return [f"{{ const Four e = {text}; {self.each_row} {self._guard()}{target} += e[r]; }}"]

    def _sum_position(self, value: Value) -> str:
        """Return the position of a row's sum."""
        natural = value.natural(self.layout)
        strides = [0 if size == 1 else stride for size, stride in zip(value.shape, natural.stride(), strict=True)]
        place = torch.empty_strided(value.views[0].shape, [*strides[:-1], 1], device="meta")
        return position_of(merged_rows(place), "(i + r)")

    # ---- Addresses ----

    def _pointer(self, view: View) -> str:
        return self._named(self.emitter.padded(view))

    def _pointer_to(self, value: Value) -> str:
        return self._named(self.emitter.place(value))
