"""C++ of a planned step.

Each kernel and loop is a function of the addresses that it reads and writes, so that equal blocks of a network share their
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.native.codegen.loop_text import (
    LoopText,
    Shape,
    flat_axes,
    is_index,
    literal,
    number_text,
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

CACHED_BYTES = 24 << 10
"""Bytes of a right-hand side that products read in place, as in tiles.h."""
PANEL_NUMBERS = 64
"""Numbers of a panel's rows on the processor with the widest vectors."""


def emit(plan: Plan, shape: Shape) -> str:
    """Return the source of a library for a planned step."""
    return _Emitter(plan, shape).source()


class _Emitter:
    def __init__(self, plan: Plan, shape: Shape):
        self.plan, self.program, self.shape = plan, plan.program, shape
        self.layout = plan.program.layout
        self.functions: dict[tuple[str, str], str] = {}
        """Parameters and body -> name."""
        self.constants: dict[Value, str] = {}
        self.prepared: dict[Any, int] = {}
        """What is prepared once a step -> its place."""
        self.preparation: list[str] = []
        self.num_bytes = plan.num_bytes
        self.panel_numbers = 0

    def source(self) -> str:
        started = self._started_by_products()
        body = [statement for step in self.plan.steps for statement in self._step(step, started)]
        body += self._gradient_terms()
        firsts = [
            f"memset(arena + {self.plan.gradients[parameter]}, 0, {self._gradient_bytes(parameter)});"
            for parameter in self.program.parameters.values()
            if parameter not in started.values()
        ]
        pieces = [self._piece(name, parameter) for name, parameter in self.program.parameters.items()]
        panel = self._room(self.panel_numbers)
        program, shape = self.program, self.shape
        output = program.output.value
        return _SOURCE.format(
            constants="\n".join(self._constant(value, name) for value, name in self.constants.items()),
            functions="\n".join(
                f"static __attribute__((noinline)) void {name}({parameters}) {{\n{body}\n}}"
                for (parameters, body), name in self.functions.items()
            ),
            preparation="\n    ".join(self.preparation),
            firsts="\n      ".join(firsts),
            body="\n    ".join(body).replace("PANEL", f"(Number*)(arena + {panel})"),
            pieces="\n    ".join(pieces),
            bytes=self.num_bytes,
            samples=shape.samples,
            outputs=shape.outputs,
            rows=shape.samples * shape.outputs,
            inputs=prod(program.x.shape[1:]),
            item="int64_t" if program.x.is_flat else "Number",
            x=self._address(program.x),
            x_row=program.x.row_stride(self.layout),
            target=self._address(program.target),
            classes=program.target.columns,
            target_row=program.target.row_stride(self.layout),
            has_targets=int(shape.has_targets),
            smoothing=repr(float(shape.label_smoothing)),
            weight=self._address(program.weight),
            loss=self._address(program.loss),
            output=self._address(output),
            output_row=output.row_stride(self.layout),
        )

    def _piece(self, name: str, parameter: Value) -> str:
        """Return a statement that uses a parameter with its gradient, in one piece if its rows are not padded."""
        row, group = padded_columns(parameter, self.layout), self.shape.decay_groups[name]
        gradient = f"(const Number*)(arena + {self.plan.gradients[parameter]})"
        rows, columns = parameter.rows, parameter.columns
        if row == columns:
            return f"use({rows * columns}, {parameter.address}, {gradient}, {group});"
        piece = f"use({columns}, {parameter.address} + r * {columns}, {gradient} + r * {row}, {group});"
        return f"for (long r = 0; r < {rows}; r++) {piece}"

    # ---- Memory ----

    def _room(self, numbers: int) -> int:
        place = self.num_bytes
        self.num_bytes += up(numbers * self.layout.number_bytes, LINE_BYTES) + 2 * LINE_BYTES
        return place

    def _address(self, value: Value) -> str:
        if value.kind is Kind.PARAMETER:
            return f"trial.theta + {value.address}"
        if value.kind is Kind.STATE:
            return f"(Number*)trial.state + {value.address}"
        if value.kind is Kind.CONSTANT:
            name = self.constants.setdefault(value, f"constant_{len(self.constants)}")
            return name if is_index(value) else f"(Number*){name}"
        item = "int64_t" if value is self.program.x and value.is_flat else "Number"
        return f"({item}*)(arena + {self.plan.places[value]})"

    def _seen(self, view: View) -> str:
        return _offset(self._address(view.value), view.seen)

    def _padded_address(self, value: Value) -> str:
        """Return the address of a value, of a parameter a copy that may be read beyond its end."""
        if value.kind not in (Kind.PARAMETER, Kind.STATE):
            return self._address(value)
        return self._copied_once(value, self._address(value), prod(value.shape))

    def _copied_once(self, key: Any, address: str, numbers: int) -> str:
        """Return the address of an aligned copy of a trial's numbers, made once per step, that may be read beyond its end."""
        if key not in self.prepared:
            place = self.prepared[key] = self._room(numbers + 4 * ALIGNED)
            self.preparation.append(f"memcpy(arena + {place}, {address}, {numbers} * sizeof(Number));")
        return f"(Number*)(arena + {self.prepared[key]})"

    def _gradient_bytes(self, parameter: Value) -> int:
        return parameter.rows * padded_columns(parameter, self.layout) * self.layout.number_bytes

    def _constant(self, value: Value, name: str) -> str:
        assert value.data is not None
        kind, padding = ("int64_t", ", 0") if is_index(value) else ("Number", ", 0" * (4 * ALIGNED))
        numbers = ", ".join(map(number_text, value.data.flatten().tolist()))
        return f"alignas(64) static const {kind} {name}[] = {{{numbers}{padding}}};"

    # ---- Functions ----

    def _call(self, body: str, addresses: Sequence[str], *, indices: int = -1) -> str:
        """Return a call of a function of addresses p0, p1, ..., of which one may be of indices."""
        kinds = ["const int64_t" if index == indices else "Number" for index in range(len(addresses))]
        parameters = ", ".join(f"{kind}* __restrict p{index}" for index, kind in enumerate(kinds))
        name = self.functions.setdefault((parameters, body), f"kernel_{len(self.functions)}")
        return f"{name}({', '.join(addresses)});"

    def _step(self, step: Loop | Value, started: dict[Value, Value]) -> list[str]:
        if isinstance(step, Loop):
            zeros = [
                f"memset({self._address(value)}, 0, {self._bytes(value)});"
                for value in step.row_sums
                if value not in self.plan.in_place
            ]
            body, addresses = _CpuLoop(self, step).text()
            return [*zeros, self._call(body, addresses)]
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

    def _product(self, value: Value, started: dict[Value, Value]) -> str:
        left, right = value.views
        a, b = left.seen, right.seen
        count, a_step, b_step = 1, 0, 0
        if a.ndim == 3:
            count, a_step, b_step = a.shape[0], a.stride(0), b.stride(0)
            a, b = a[0], b[0]
        (m, k), n = a.shape, b.shape[1]
        row = value.row_stride(self.layout)
        prepare, right_hand, right_address = self._right_hand(right, b, k, n)
        addresses = [self._seen(left), right_address, self._address(value)]
        start = f"(Number*)ZEROS<{up(n, ALIGNED)}>"
        if value in self.plan.in_place:
            start = f"is_first ? {start} : nullptr" if value in started else "nullptr"
        elif value.start is not None:
            key = (value.start.value, value.start.seen.storage_offset(), n)
            start = self._copied_once(key, self._seen(value.start), n)
        addresses += [start, "PANEL"]
        call = (
            f"product<{k}, vectors({n})>({up(m, ROWS)}, {k}, Left{{p0, {a.stride(0)}, {a.stride(1)}}}, {right_hand}, "
            f"p2, {row}, p3, nothing, nothing);"
        )
        call = f"{prepare}{call}"
        if count > 1:
            call = f"for (long z = 0; z < {count}; z++, p0 += {a_step}, p1 += {b_step}, p2 += {m * row}) {{ {call} }}"
        return self._call(f"  // {count} x [{m}, {k}] [{k}, {n}]\n  {call}", addresses)

    def _right_hand(self, right: View, b: Tensor, k: int, n: int) -> tuple[str, str, str]:
        """Return how a product's right-hand side is prepared and read, and its address."""
        row, column = b.stride()
        address, numbers = self._seen(right), up(n, PANEL_NUMBERS) * k
        is_outside = right.value.kind in (Kind.PARAMETER, Kind.STATE)
        is_straight = column == 1 or n == 1
        move = f"rows_to_panels({{0}}, {row}, {k}, {n}, {{1}});"
        if not is_straight:
            move = f"transposed_to_panels({{0}}, {column}, {n}, {k}, {{1}});"
        if is_straight and not (n == 1 and is_outside):
            fits = n % ALIGNED == 0 and k * row * self.layout.number_bytes <= CACHED_BYTES
            if not is_outside or fits:
                return "", f"rows_of(p1, {row})", address
        if is_outside and right.seen.ndim == 2:
            key = (right.value, b.storage_offset(), tuple(b.shape), b.stride())
            if key not in self.prepared:
                self.prepared[key] = self._room(numbers)
                self.preparation.append(move.format(address, f"(Number*)(arena + {self.prepared[key]})"))
            return "", f"panels_of(p1, {k})", f"(Number*)(arena + {self.prepared[key]})"
        self.panel_numbers = max(self.panel_numbers, numbers)
        return move.format("p1", "p4") + " ", f"panels_of(p4, {k})", address

    def _copy(self, value: Value) -> list[str]:
        parts: Sequence[Part] = value.operation
        statements = []
        covered = sum(place.numel() for _, place, adds in parts if not adds)
        if covered < prod(value.shape):
            statements.append(f"memset({self._address(value)}, 0, {self._bytes(value)});")
        return [*statements, *(self._part(view, place, self._address(value), adds) for view, place, adds in parts)]

    def _part(self, view: View, place: Tensor, address: str, adds: bool) -> str:
        return self._call(_moved(view.seen, place, adds), [self._seen(view), _offset(address, place)])

    def _table(self, value: Value) -> list[str]:
        view, index, n, count = value.views[0], value.operation, value.columns, prod(value.operation.shape)
        entry = f"p2[{position_of(flat_axes(index.seen), 'r')}]"
        row = value.row_stride(self.layout)
        addresses = [self._address(value), self._seen(view), self._seen(index)]
        if value.kind is Kind.LOOK_UP:
            table = f"p1 + {entry} * {view.seen.stride(0)}"
            body = f"  for (long r = 0; r < {count}; r++) memcpy(p0 + r * {row}, {table}, {n} * sizeof(Number));"
            return [self._call(body, addresses, indices=2)]
        source = f"p1 + {position_of(merged_rows(view.seen), 'r')}"
        body = (
            f"  for (long r = 0; r < {count}; r++) {{ Number* to = p0 + {entry} * {row}; const Number* from = {source}; "
            f"for (long j = 0; j < {n}; j++) to[j] += from[j]; }}"
        )
        zero = [] if value in self.plan.in_place else [f"memset({self._address(value)}, 0, {self._bytes(value)});"]
        return [*zero, self._call(body, addresses, indices=2)]

    def _gradient_terms(self) -> list[str]:
        """Add the terms that no kernel adds in place."""
        statements = []
        for name, group in self.program.gradients.items():
            parameter = self.program.parameters[name]
            place = with_rows(parameter.shape, padded_columns(parameter, self.layout))
            address = f"(Number*)(arena + {self.plan.gradients[parameter]})"
            for term in group:
                if term.value not in self.plan.in_place:
                    view = View(term.value, term.seen.expand(parameter.shape))
                    statements.append(self._part(view, place, address, True))
        return statements


class _CpuLoop(LoopText):
    """The text of a loop over rows whose passes go over vectors, four rows at a time."""

    def __init__(self, emitter: _Emitter, loop: Loop):
        super().__init__(loop, emitter.layout)
        self.emitter = emitter
        self.addresses: list[str] = []
        self._pointers: dict[str, str] = {}
        self.rest = loop.rows % ROWS

    def text(self) -> tuple[str, list[str]]:
        """Return a function's body, and the addresses that it is given."""
        body = "\n    ".join([*self._kept_rows(), *self._passes()])
        return f"  for (long i = 0; i < {self.loop.rows}; i += ROWS) {{\n    {body}\n  }}", self.addresses

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
        return self._named(_offset(self.emitter._padded_address(view.value), view.seen))

    def _pointer_to(self, value: Value) -> str:
        return self._named(self.emitter._address(value))

    def _named(self, address: str) -> str:
        if address not in self._pointers:
            self._pointers[address] = f"p{len(self.addresses)}"
            self.addresses.append(address)
        return self._pointers[address]


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


def _offset(address: str, seen: Tensor) -> str:
    return f"{address} + {seen.storage_offset()}" if seen.storage_offset() else address


_SOURCE = """// Generated from the graph of a network's loss and gradient.
#include "generated.h"

{constants}
{functions}
struct Generated : Step<Generated> {{
  static constexpr long SAMPLES = {samples};
  char* arena;

  explicit Generated(const Call& call) : Step(call) {{ arena = memory.take<char>({bytes}); }}
  void prepare() {{
    {preparation}
  }}
  double tile(long row, long count, const int64_t* order, bool is_first, bool is_last) {{
    const Batch batch = {{order, row, count}};
    gather_samples((const {item}*)call.x, batch, SAMPLES, {inputs}, {x}, {x_row});
    gather_targets(call.labels, {has_targets}, batch, SAMPLES, {outputs}, {classes}, Number({smoothing}),
                   {target}, {target_row});
    for (long r = 0; r < {rows}; r++) ({weight})[r] = r < count * {outputs} ? Number(1) / Number(call.batch * {outputs}) : 0;
    if (is_first) {{
      {firsts}
    }}
    {body}
    if (trial.correct) *trial.correct += count_correct(call.labels, batch, {outputs}, {classes}, {output}, {output_row});
    double total = 0;
    for (long r = 0; r < count * {outputs}; r++) total += ({loss})[r];
    return total * call.batch;
  }}
  template <class Use> void each_piece(Use use) {{
    {pieces}
  }}
  template <class Use> void last_pieces(Use use) {{ each_piece(use); }}
}};

extern "C" int64_t scratch_bytes(const Call* call) {{ return scratch_bytes_of<Generated>(call); }}
extern "C" void run(const Call* call) {{ run_steps<Generated>(*call); }}
extern "C" void evaluate(const Call* call) {{ evaluate_all<Generated>(*call); }}
"""
