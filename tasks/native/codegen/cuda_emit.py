"""CUDA C++ of a planned step, see `cuda.h`.

As on a CPU each kernel and loop is a function of the places that it reads and writes, so that equal blocks of a network share
their code. A place is an address in global memory, or a number of bytes in a block's shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.native.codegen.cuda_plan import CudaPlan, Tuning
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
from depthrate.tasks.native.codegen.plan import Loop
from depthrate.tasks.native.codegen.values import Kind, Value, View, merged_rows, up

MAX_ROWS = 4
TIMED_STATEMENTS = 5
"""Statements that are counted first when a step is timed: samples, targets, loss, update, and a whole step."""
TILES = ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (2, 1), (1, 2), (1, 1))
"""Rows and columns of a product that a thread computes."""


@dataclass(frozen=True)
class CudaSource:
    """A step's source, and what a launch needs to know."""

    text: str
    threads: int
    blocks: int
    shared_bytes: int
    arena_bytes: int
    number_bytes: int
    labels: tuple[str, ...]
    """What each statement of a tile does."""
    num_parts: int = 1
    """Parts of a trial's batch whose gradients separate blocks compute. With one part a launch takes many steps, with several
    parts two launches take one step."""

    def to_file(self) -> str:
        """Return the text of a file from which `from_file` reads the source."""
        numbers = {name: value for name, value in vars(self).items() if name != "text"}
        return f"// {json.dumps(numbers)}\n{self.text}"

    @classmethod
    def from_file(cls, content: str) -> CudaSource:
        """Return the source that `to_file` has written."""
        head, _, text = content.partition("\n")
        numbers = json.loads(head.removeprefix("// "))
        return cls(text=text, **{**numbers, "labels": tuple(numbers["labels"])})


@dataclass(frozen=True)
class Address:
    """A place in shared or global memory."""

    text: str
    """Expression of a pointer, or of a number of bytes in shared memory."""
    is_shared: bool = False
    is_aligned: bool = False
    """Whether it is a multiple of 16 bytes."""
    item: str = "Number"

    def behind(self, numbers: int | torch.SymInt, number_bytes: int) -> Address:
        """Return the place so many numbers behind."""
        if not numbers:
            return self
        is_aligned = self.is_aligned and numbers % 4 == 0
        step = numbers * number_bytes if self.is_shared else numbers
        return Address(f"{self.text} + {step}", self.is_shared, is_aligned, self.item)

    @property
    def passed(self) -> str:
        """Return the text of a pointer."""
        return f"in_shared<{self.item}>({self.text})" if self.is_shared else self.text


def emit_cuda(plan: CudaPlan, shape: Shape, tuning: Tuning) -> CudaSource:
    """Return the source of a planned step."""
    return _Emitter(plan, shape, tuning).source()


class _Emitter:
    def __init__(self, plan: CudaPlan, shape: Shape, tuning: Tuning):
        self.plan, self.program, self.shape, self.tuning = plan, plan.program, shape, tuning
        self.layout = plan.program.layout
        self.functions: dict[tuple[str, str], str] = {}
        """Parameters and body -> name."""
        self.constants: dict[Value, str] = {}
        self.written: set[Value] = set()
        """Parameters to whose gradients an earlier step has added."""
        self.time = 0
        self.ahead = ""
        """Call that copies the operands of the step that is being written, before the step in front of it."""

    def source(self) -> CudaSource:
        body: list[str] = []
        labels: list[str] = []
        for time, step in enumerate(self.plan.steps):
            self.time = time
            self.ahead = ""
            statements = self._step(step)
            if self.ahead:
                body[-1] = f"{self.ahead} {body[-1]}"
            body += statements
            labels += [_label(step)] * len(statements)
        self.time = len(self.plan.steps)
        terms = self._gradient_terms()
        body, labels = body + terms, labels + ["gradient term"] * len(terms)
        program, shape, tuning = self.program, self.shape, self.tuning
        zeros = [
            f"if (is_first) fill_zero(gradient + {parameter.address}, {prod(parameter.shape)});"
            for parameter in program.parameters.values()
            if parameter not in self.written
        ]
        output = program.output.value
        self.time = 0
        x = self._writes(program.x)
        second = x[1].passed if len(x) > 1 else f"({self._item(program.x)}*)nullptr"
        target, weight = self._read(program.target), self._read(program.weight)
        self.time = len(self.plan.steps)
        is_whole = max(self.plan.arena_bytes, 1)
        text = _SOURCE.format(
            constants="\n".join(self._constant(value, name) for value, name in self.constants.items()),
            functions="\n".join(
                f"FUNCTION void {name}({parameters}) {{\n{body}\n}}"
                for (parameters, body), name in self.functions.items()
            ),
            body="\n    ".join(
                [*zeros, *(f"TIMED({number}, {text})" for number, text in enumerate(body, TIMED_STATEMENTS))]
            ),
            num_timed=len(body) + TIMED_STATEMENTS,
            pieces="\n    ".join(self._pieces()),
            arena_bytes=is_whole,
            shared_bytes=self.plan.shared_bytes,
            samples=shape.samples,
            outputs=shape.outputs,
            inputs=prod(program.x.shape[1:]),
            item="int64_t" if program.x.is_flat else "Number",
            x=x[0].passed,
            second=second,
            x_row=program.x.row_stride(self.layout),
            target=target.passed,
            classes=program.target.columns,
            target_row=program.target.row_stride(self.layout),
            has_targets=str(shape.has_targets).lower(),
            smoothing=repr(float(shape.label_smoothing)),
            weight=weight.passed,
            loss=self._read(program.loss).passed,
            output=self._read(output).passed,
            output_row=output.row_stride(self.layout),
        )
        return CudaSource(
            text,
            tuning.threads,
            tuning.blocks,
            self.plan.shared_bytes,
            self.plan.arena_bytes,
            self.layout.number_bytes,
            tuple(labels),
        )

    def _pieces(self) -> list[str]:
        """Return calls for runs of parameters with the same weight decay."""
        runs: list[tuple[int, int, int]] = []
        for name, parameter in self.program.parameters.items():
            group, count = self.shape.decay_groups[name], prod(parameter.shape)
            if runs and runs[-1][2] == group and runs[-1][0] + runs[-1][1] == parameter.address:
                runs[-1] = (runs[-1][0], runs[-1][1] + count, group)
            else:
                runs.append((parameter.address, count, group))
        return [f"use({address}, {count}, {group});" for address, count, group in runs]

    # ---- Memory ----

    def _item(self, value: Value) -> str:
        is_integer = (value is self.program.x and value.is_flat) or is_index(value)
        return "int64_t" if is_integer else "Number"

    def _read(self, value: Value) -> Address:
        """Return the place from which a value is read at this step."""
        if value.kind is Kind.PARAMETER:
            return Address(f"trial.theta + {value.address}")
        if value.kind is Kind.STATE:
            return Address(f"(Number*)trial.state + {value.address}")
        item = self._item(value)
        if value.kind is Kind.CONSTANT:
            name = self.constants.setdefault(value, f"constant_{len(self.constants)}")
            return Address(f"({item}*){name}", item=item)
        if value in self.plan.in_place:
            address = self.plan.in_place[value].address
            return Address(f"gradient + {address}", is_aligned=address % 4 == 0)
        if value in self.plan.shared:
            place, last = self.plan.shared[value]
            if self.time <= last:
                return Address(str(place), True, True, item)
        return Address(f"({item}*)(arena + {self.plan.arena[value]})", False, True, item)

    def _writes(self, value: Value) -> list[Address]:
        """Return the places to which a value is written at this step."""
        places = [self._read(value)]
        if value in self.plan.shared and value in self.plan.arena:
            places.append(
                Address(f"({self._item(value)}*)(arena + {self.plan.arena[value]})", False, True, places[0].item)
            )
        return places

    def _row(self, value: Value) -> int:
        """Return the numbers from one row of a value to the next. Gradients are not padded."""
        if value in self.plan.in_place:
            return value.columns
        return value.row_stride(self.layout)

    def _adds(self, value: Value) -> str:
        """Return whether a step adds to what is there: a parameter's gradient, of earlier tiles or steps."""
        parameter = self.plan.in_place.get(value)
        return "false" if parameter is None else self._adds_to(parameter)

    def _adds_to(self, parameter: Value) -> str:
        if parameter in self.written:
            return "true"
        self.written.add(parameter)
        return "!is_first"

    def _constant(self, value: Value, name: str) -> str:
        assert value.data is not None
        numbers = ", ".join(number_text(number) for number in value.data.flatten().tolist())
        kind = "int64_t" if is_index(value) else "Number"
        return f"TABLE {kind} {name}[] = {{{numbers}}};"

    def at(self, view: View) -> Address:
        """Return the place of a view's first number, as it is read."""
        return self._read(view.value).behind(int(view.seen.storage_offset()), self.layout.number_bytes)

    # ---- Functions ----

    def call(self, body: str, addresses: Sequence[Address], flags: Sequence[tuple[str, str]] = ()) -> str:
        """Return a call of a function of places p0, p1, ..., and flags with their names."""
        parameters, before, given = [], [], []
        for index, address in enumerate(addresses):
            if address.is_shared:
                parameters.append(f"const int s{index}")
                before.append(f"  {address.item}* const p{index} = in_shared<{address.item}>(s{index});")
            else:
                parameters.append(f"{address.item}* const __restrict p{index}")
            given.append(address.text)
        parameters += [f"const bool {name}" for name, _ in flags]
        key = ", ".join(parameters), "\n".join([*before, body])
        name = self.functions.setdefault(key, f"kernel_{len(self.functions)}")
        return f"{name}({', '.join([*given, *(value for _, value in flags)])});"

    def _step(self, step: Loop | Value) -> list[str]:
        if isinstance(step, Loop):
            body, addresses = _CudaLoop(self, step).text()
            return [self.call(body, addresses)]
        if step.kind is Kind.PRODUCT:
            return [self._product(step)]
        if step.kind is Kind.COPY:
            return self._copy(step)
        if step.kind is Kind.ROW_SUM:
            return [self._row_sum(step)]
        return [self._table(step)]

    # ---- Products ----

    def _product(self, value: Value) -> str:
        left, right = value.operands
        assert isinstance(left, View) and isinstance(right, View)
        a, b, count, a_step, b_step = left.seen, right.seen, 1, 0, 0
        if a.ndim == 3:
            count, a_step, b_step = a.shape[0], a.stride(0), b.stride(0)
            a, b = a[0], b[0]
        (m, k), n = a.shape, b.shape[1]
        places = [self.at(left), self.at(right)]
        is_aligned = [
            place.is_aligned and (count == 1 or step % 4 == 0)
            for place, step in zip(places, (a_step, b_step), strict=True)
        ]
        matrices = [_matrix(a, is_aligned[0]), _matrix(b.t(), is_aligned[1])]
        outputs = self._writes(value)
        row = self._row(value)
        is_aligned_target = all(place.is_aligned for place in outputs)
        addresses = [*places, *outputs]
        second = "p3" if len(outputs) > 1 else "nullptr"
        start = "nullptr"
        if value.start is not None:
            start = f"p{len(addresses)}"
            addresses.append(self.at(value.start))
        adds = self._adds(value)
        flags = [] if adds in ("true", "false") else [("adds", adds)]
        adds_text = adds if not flags else "adds"
        target_type = f"Target<{row}, {str(is_aligned_target).lower()}>"
        target = f"{target_type}{{p2, {second}, {start}, {adds_text}}}"
        factors = f"{matrices[0]}{{p0}}, {matrices[1]}{{p1}}"
        copies = [count == 1 and not place.is_shared for place in places]
        note = f"  // {count} x [{m}, {k}] [{k}, {n}]\n"
        if not any(copies):
            tm, tn = self._tile(count, m, n, self.tuning.threads)
            body = f"{note}  products<{count}, {m}, {n}, {k}, {tm}, {tn}, {a_step}, {b_step}>({factors}, {target});"
            return self.call(body, addresses, flags)
        along_rows = _is_along_rows(a), _is_along_rows(b.t())
        place, room = self.plan.scratch[self.time]
        tm, tn, bm, bn, depth = self._blocks(m, n, k, copies, along_rows, room)
        copied = [operand.value for operand, is_copied in zip((left, right), copies, strict=True) if is_copied]
        if is_ahead := self._copies_ahead(copied):
            ahead = self._blocks(m, n, k, copies, along_rows, self.plan.ahead[self.time][1])
            is_ahead = ahead[2] >= m and ahead[3] >= n and ahead[4] == k
            if is_ahead:
                (tm, tn, bm, bn, depth), place = ahead, self.plan.ahead[self.time][0]
        flags_text = ", ".join(str(flag).lower() for flag in copies)
        scratch = f"p{len(addresses)}"
        addresses.append(Address(str(place), True, True))
        sizes = f"{m}, {n}, {k}, {tm}, {tn}, {bm}, {bn}, {depth}, {flags_text}"
        body = f"{note}  product<{sizes}, {str(is_ahead).lower()}>({factors}, {target}, {scratch});"
        if is_ahead:
            text = f"  copy_ahead<{m}, {n}, {k}, {bm}, {bn}, {flags_text}>({factors}, p2);"
            self.ahead = self.call(text, [*places, addresses[-1]])
        return self.call(body, addresses, flags)

    def _copies_ahead(self, operands: Sequence[Value]) -> bool:
        """Return whether a product's operands in global memory can be copied during the step in front of it."""
        if self.time not in self.plan.ahead or not self.tuning.copies_ahead:
            return False
        before = self.plan.steps[self.time - 1]
        written = before.stored if isinstance(before, Loop) else [before]
        return not any(operand in written for operand in operands)

    def _tile(self, count: int, m: int, n: int, threads: int) -> tuple[int, int]:
        """Choose the results of a thread: many, because each number that it reads takes part in several, but enough threads.

        Costs are cycles of a multiprocessor per summed number: of its arithmetic, of reading shared memory, and of one thread.
        """

        def cost(tile: tuple[int, int]) -> float:
            tm, tn = tile
            tiles = count * -(-m // tm) * -(-n // tn)
            warps = -(-tiles // 32)
            alone = tm * tn + (tm + tn) / 4 + 8
            return max(warps * max(0.25 * tm * tn, 0.6 * (tm + tn)), -(-tiles // threads) * alone)

        return min((tile for tile in TILES if tile[0] * tile[1] <= self.tuning.largest_tile), key=cost)

    def _blocks(
        self, m: int, n: int, k: int, copies: Sequence[bool], along_rows: Sequence[bool], room: int
    ) -> tuple[int, int, int, int, int]:
        """Choose a thread's results, a block's rows and columns, and how many numbers are summed at a time."""
        threads, stride = self.tuning.threads, self.layout.row_stride

        def numbers(bm: int, bn: int, depth: int) -> int:
            sizes = [
                0 if not is_copied else depth * stride(size) if is_along else size * stride(depth)
                for size, is_copied, is_along in zip((bm, bn), copies, along_rows, strict=True)
            ]
            return sum(sizes) * self.layout.number_bytes

        tm, tn = self._tile(1, m, n, threads)
        bm, bn = up(m, tm), up(n, tn)
        while (bm // tm) * (bn // tn) > threads or numbers(bm, bn, min(k, 16)) > room:
            if bm // tm >= bn // tn:
                bm = up(-(-bm // 2), tm)
            else:
                bn = up(-(-bn // 2), tn)
        depth = up(k, 4)
        while numbers(bm, bn, depth) > room:
            depth = up(-(-depth // 2), 4)
        return tm, tn, bm, bn, min(depth, k)

    # ---- Copies, sums and tables ----

    def _copy(self, value: Value) -> list[str]:
        parts: Sequence[Part] = value.operation
        statements = []
        covered = sum(place.numel() for _, place, adds in parts if not adds)
        target = self._read(value)
        if covered < prod(value.shape):
            statements.append(f"fill_zero({target.passed}, {value.rows * value.row_stride(self.layout)});")
        number = self.layout.number_bytes
        for view, place, adds in parts:
            body = _moved(view.seen, place, "+=" if adds else "=")
            statements.append(self.call(body, [self.at(view), target.behind(int(place.storage_offset()), number)]))
        return statements

    def _gradient_terms(self) -> list[str]:
        """Add the terms that no kernel adds in place."""
        statements = []
        for name, group in self.program.gradients.items():
            parameter = self.program.parameters[name]
            place = torch.empty(parameter.shape, device="meta")
            for term in group:
                if term.value in self.plan.in_place:
                    continue
                seen = term.seen.expand(parameter.shape)
                adds = self._adds_to(parameter)
                addresses = [self.at(View(term.value, seen)), Address(f"gradient + {parameter.address}")]
                statements.append(self.call(_moved(seen, place, "adds"), addresses, [("adds", adds)]))
        return statements

    def _row_sum(self, value: Value) -> str:
        view = value.operands[0]
        assert isinstance(view, View)
        seen = view.seen
        rank = seen.ndim
        reduced = [axis for axis in range(rank - 1) if value.shape[axis] == 1 and seen.shape[axis] > 1]
        kept = [axis for axis in range(rank) if axis not in reduced]
        outputs = prod(seen.shape[axis] for axis in kept)
        terms = prod(seen.shape[axis] for axis in reduced)
        of_output = [(seen.shape[axis], seen.stride(axis)) for axis in kept]
        of_term = [(seen.shape[axis], seen.stride(axis)) for axis in reduced]
        row, columns = self._row(value), value.columns
        adds = self._adds(value)
        body = (
            f"  row_sums<{outputs}, {terms}>(p0, p1, adds, [](int o, int q) {{ return {position_of(of_output, 'o')} + "
            f"{position_of(of_term, 'q')}; }}, [](int o) {{ return o / {columns} * {row} + o % {columns}; }}, p2);"
        )
        addresses = [self.at(view), self._read(value), Address(str(self.plan.scratch[self.time][0]), True, True)]
        return self.call(body, addresses, [("adds", adds)])

    def _table(self, value: Value) -> str:
        view, index = value.operands[0], value.operation
        assert isinstance(view, View)
        n, count, row = value.columns, prod(index.shape), self._row(value)
        entry = f"(int)p2[{position_of(flat_axes(index.seen), 'r')}]"
        addresses = [self._read(value), self.at(view), self.at(index)]
        if value.kind is Kind.LOOK_UP:
            body = (
                f"  PHASE\n    for (int at = tid; at < {count * n}; at += THREADS) {{\n"
                f"      const int r = at / {n}, j = at % {n};\n"
                f"      p0[r * {row} + j] = p1[{entry} * {view.seen.stride(0)} + j];\n    }}\n  END"
            )
            return self.call(body, addresses)
        adds = self._adds(value)
        source = position_of(merged_rows(view.seen), "r")
        body = (
            f"  scatter<{value.rows}, {n}, {count}, {row}>(p1, p0, adds, [](int r) {{ return {source}; }}, "
            f"[&](int r) {{ return {entry}; }});"
        )
        return self.call(body, addresses, [("adds", adds)])


class _CudaLoop(LoopText):
    """The text of a loop over rows for warps, in phases between sums over a row."""

    def __init__(self, emitter: _Emitter, loop: Loop):
        super().__init__(loop, emitter.layout)
        self.cuda = emitter
        self.places: list[Address] = []
        self._indices: dict[tuple[str, bool], int] = {}
        self._first: dict[tuple[str, str, str], str] = {}
        """Pointer, position and columns of a number of each lane that is read before all phases -> its name."""
        widths = [self._width(value) for value in loop.computed]
        widest = max(widths, default=1)
        self.lanes = 1
        while self.lanes < 32 and self.lanes * self._group(widest) < widest:
            self.lanes *= 2
        numbers = max(self._numbers(width) for width in {*widths, 1})
        self.rows = max(1, min(MAX_ROWS, emitter.tuning.unrolled // numbers)) if widest > 1 else 1
        at_once = emitter.tuning.threads // self.lanes
        while self.rows > 1 and (self.rows - 1) * at_once >= loop.rows:
            self.rows -= 1
        self.rest = loop.rows % (32 // self.lanes * self.rows)

    def _group(self, width: int) -> int:
        """Return how many adjacent numbers a lane computes."""
        return 4 if width % 4 == 0 else 1

    def _numbers(self, width: int) -> int:
        """Return the numbers of a row that a lane computes."""
        group = self._group(width)
        return group * -(-width // (group * self.lanes))

    def text(self) -> tuple[str, list[Address]]:
        """Return a function's body, and the places that it is given."""
        lines = self._kept_rows()
        for value in self.loop.computed:
            if value.columns == 1:
                lines.append(f"{'Flags' if value.is_boolean else 'Lanes'} s{self.names[value]}[{self.rows}];")
        lines += self._passes()
        per_warp = 32 // self.lanes * self.rows
        row = f"i + r * {32 // self.lanes} + lane / {self.lanes}"
        head = [
            f"Ints q[{self.rows}];",
            f"Flags there[{self.rows}];",
            f"const Ints l = lane % {self.lanes};",
            f"UNROLL for (int r = 0; r < {self.rows}; r++) {{ const Ints row = {row}; "
            f"q[r] = {f'least(row, {self.loop.rows - 1})' if self.rest else 'row'}; "
            f"there[r] = {f'row < {self.loop.rows}' if self.rest else 'true'}; }}",
        ]
        first = [
            f"Lanes {name}[{self.rows}]; UNROLL for (int r = 0; r < {self.rows}; r++) "
            f"{{ {columns} {name}[r] = one({pointer}, Ints({position})); }}"
            for (pointer, position, columns), name in self._first.items()
        ]
        inner = "\n      ".join([*head, *first, *lines])
        body = (
            f"  WARPS_PHASE\n    for (int i = warp * {per_warp}; i < {self.loop.rows}; i += NUM_WARPS * {per_warp}) {{\n"
            f"      {inner}\n    }}\n  END"
        )
        return body, self.places

    def _kept(self, value: Value) -> str:
        kind = "Flags" if value.is_boolean else "Lanes"
        return f"{kind} k{self.names[value]}[{self.rows}][{self._numbers(value.columns)}];"

    def _columns(self, width: int, computed: Sequence[Value], sums: Sequence[Value]) -> list[str]:
        group, before, loads, body, stores = self._group(width), [], [], [], []
        seen: dict[Any, str] = {}
        is_masked = width % (group * self.lanes) != 0
        there = "there[r] & inside" if is_masked else "there[r]"
        step = group * self.lanes
        column = f"const Ints c = b * {step} + l * {group};"
        if is_masked:
            column = (
                f"const Ints wished = b * {step} + l * {group}; const Flags inside = wished < {width}; "
                f"const Ints c = least(wished, {width - group});"
            )

        def loaded(view: View) -> str:
            key = (view.value, view.seen.storage_offset(), view.shape, view.seen.stride())
            is_one = view.seen.shape[-1] == 1 or view.seen.stride(-1) == 0
            if is_one or self._numbers(width) == 1:
                pointer, position = self._named_place(self.cuda.at(view)), position_of(merged_rows(view.seen), "q[r]")
                return self._read_first(pointer, position if is_one else f"{position} + c", "" if is_one else column)
            if key not in seen:
                name = seen[key] = f"l{len(seen)}"
                place = self.cuda.at(view)
                axes = merged_rows(view.seen)
                is_aligned = place.is_aligned and group == 4 and all(stride % 4 == 0 for _, stride in axes)
                pointer, position = self._named_place(place), position_of(axes, "q[r]")
                loads.append(
                    f"Lanes {name}[{group}]; load<{group}, {str(is_aligned).lower()}, 1>({name}, {pointer}, {position} + c);"
                )
            return f"{seen[key]}[e]"

        def operand(item: View | float, masks: bool) -> str:
            if not isinstance(item, View):
                return literal(item)
            value, is_mask = item.value, self._own(item)
            if not is_mask:
                text = loaded(item)
            elif value.columns == 1:
                text = f"s{self.names[value]}[r]"
            else:
                text = f"t{self.names[value]}" if value in computed else f"k{self.names[value]}[r][v]"
            if not value.is_boolean:
                return text
            if masks:
                return text if is_mask else f"({text} != 0)"
            return f"to_number({text})" if is_mask else text

        for value in computed:
            name = self.names[value]
            if value.kind is Kind.REDUCE:
                is_maximum = value.operation == "maximum"
                neutral = "-INFINITY" if is_maximum else "Number(0)"
                before.append(
                    f"Lanes r{name}[{self.rows}]; UNROLL for (int r = 0; r < {self.rows}; r++) r{name}[r] = {neutral};"
                )
                text = operand(value.operands[0], False)
                if is_masked:
                    text = f"pick(inside, {text}, {neutral})"
                if is_maximum:
                    body.append(f"{{ const Lanes x = {text}; r{name}[r] = pick(x > r{name}[r], x, r{name}[r]); }}")
                else:
                    body.append(f"r{name}[r] = r{name}[r] + {text};")
                continue
            body.append(f"const auto t{name} = {self._expression(value, operand)};")
            if self._is_kept(value):
                body.append(f"k{name}[r][v] = {f'as_flags(t{name})' if value.is_boolean else f't{name}'};")
            if value in self.loop.stored:
                loads.append(f"Lanes o{name}[{group}];")
                body.append(f"o{name}[e] = {f'to_number(t{name})' if value.is_boolean else f't{name}'};")
                row = value.row_stride(self.layout)
                for place in self.cuda._writes(value):
                    is_aligned = str(place.is_aligned and row % 4 == 0).lower()
                    pointer = self._named_place(place)
                    stores.append(f"store<{group}, {is_aligned}>({pointer}, q[r] * {row} + c, o{name}, {there});")
        if not body:
            return before
        parts = self._numbers(width) // group
        unused = "(void)inside; " if is_masked else ""
        inner = "\n        ".join(
            [
                column + unused,
                *loads,
                f"UNROLL for (int e = 0; e < {group}; e++) {{ const int v = b * {group} + e; (void)v;",
                *(f"  {line}" for line in body),
                "}",
                *stores,
            ]
        )
        return [
            *before,
            f"UNROLL for (int r = 0; r < {self.rows}; r++) UNROLL for (int b = 0; b < {parts}; b++) {{",
            f"        {inner}\n      }}",
        ]

    def _number(self, value: Value) -> list[str]:
        name = self.names[value]
        if value.kind is Kind.REDUCE and self._width(value) > 1:
            function = "maximum_of" if value.operation == "maximum" else "sum_of"
            text = f"{function}<{self.lanes}>(r{name}[r])"
        elif value.kind is Kind.REDUCE:
            text = self._four(value.operands[0], False)
        else:
            text = self._expression(value, self._four)
        if value.is_boolean:
            text = f"as_flags({text})"
        lines = [f"s{name}[r] = {text};"]
        if value in self.loop.stored:
            stored = f"to_number(s{name}[r])" if value.is_boolean else f"s{name}[r]"
            for place in self.cuda._writes(value):
                pointer, row = self._named_place(place), value.row_stride(self.layout)
                lines.append(
                    f"{{ const Lanes o[1] = {{{stored}}}; store<1, false>({pointer}, q[r] * {row}, o, there[r] & (l == 0)); }}"
                )
        return [f"UNROLL for (int r = 0; r < {self.rows}; r++) {{ {' '.join(lines)} }}"]

    def _four(self, item: View | float, masks: bool) -> str:
        if not isinstance(item, View):
            return literal(item)
        value = item.value
        if self._own(item):
            text = f"s{self.names[value]}[r]"
            return text if masks or not value.is_boolean else f"to_number({text})"
        text = self._read_first(self._named_place(self.cuda.at(item)), position_of(merged_rows(item.seen), "q[r]"), "")
        return f"({text} != 0)" if value.is_boolean and masks else text

    def _read_first(self, pointer: str, position: str, columns: str) -> str:
        """Return the name of a number of each lane, which is read before sums over a row are waited for."""
        columns = columns.replace("b * ", "0 * ")
        name = self._first.setdefault((pointer, position, columns), f"h{len(self._first)}")
        return f"{name}[r]"

    def _named_place(self, place: Address) -> str:
        key = place.text, place.is_shared
        if key not in self._indices:
            self._indices[key] = len(self.places)
            self.places.append(place)
        return f"p{self._indices[key]}"


def _label(step: Loop | Value) -> str:
    if isinstance(step, Loop):
        return f"loop over {step.rows} rows of {sorted({value.columns for value in step.computed})}"
    if step.kind is Kind.PRODUCT:
        left = step.operands[0]
        assert isinstance(left, View)
        return f"product {tuple(step.shape)} of {left.shape[-1]}"
    return f"{step.kind.value} {tuple(step.shape)}"


def _is_along_rows(seen: Tensor) -> bool:
    """Return whether the first numbers of a matrix's rows are adjacent, as in cuda.h."""
    return seen.stride(0) == 1 and seen.stride(1) != 1


def _matrix(seen: Tensor, is_aligned: bool) -> str:
    return f"Matrix<{seen.stride(0)}, {seen.stride(1)}, {str(is_aligned).lower()}>"


def _moved(source: Tensor, place: Tensor, adds: str) -> str:
    """Return a phase that moves the numbers of one tensor to another of the same shape."""
    axes = [
        (size, to, of) for size, to, of in zip(place.shape, place.stride(), source.stride(), strict=True) if size > 1
    ]
    axes.sort(key=lambda axis: (-axis[1], -axis[2]))
    target = position_of([(size, to) for size, to, _ in axes], "at")
    origin = position_of([(size, of) for size, _, of in axes], "at")
    total = prod(size for size, *_ in axes)
    if adds == "adds":
        statement = f"{{ const Number v = p0[{origin}]; p1[{target}] = adds ? p1[{target}] + v : v; }}"
    else:
        statement = f"p1[{target}] {adds} p0[{origin}];"
    return f'  PHASE\n    _Pragma("unroll 4") for (int at = tid; at < {total}; at += THREADS) {statement}\n  END'


_SOURCE = """// Generated from the graph of a network's loss and gradient.
#define NUM_TIMED {num_timed}
#include "cuda.h"

{constants}
{functions}
struct Generated {{
  static constexpr int SAMPLES = {samples}, OUTPUTS = {outputs}, CLASSES = {classes}, OUTPUT_ROW = {output_row};
  static constexpr int64_t ARENA_BYTES = {arena_bytes};
  static constexpr int SHARED_BYTES = {shared_bytes};

  static MEMBER void tile(const Call& c, const Trial& trial, char* arena, Number* gradient, Batch batch, bool is_first) {{
    TIMED(0, gather_samples<SAMPLES, {inputs}, {x_row}>((const {item}*)c.x, batch, {x}, {second});)
    TIMED(1, gather_targets<SAMPLES, OUTPUTS, CLASSES, {target_row}, {has_targets}>(
                 c.labels, batch, c.batch, Number({smoothing}), {target}, {weight});)
    {body}
  }}
  static MEMBER const Number* loss(char* arena) {{ return {loss}; }}
  static MEMBER const Number* output(char* arena) {{ return {output}; }}
  template <class Use> static MEMBER void each_piece(Use use) {{
    {pieces}
  }}
}};

#ifdef __CUDACC__
#define PROGRAM extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
#if PARTS == 1
PROGRAM run(const __grid_constant__ Call c) {{ run_block<Generated>(c, blockIdx.x, gridDim.x); }}
#else
PROGRAM part(const __grid_constant__ Call c, int64_t step) {{ part_block<Generated>(c, step, blockIdx.x, gridDim.x); }}
PROGRAM step(const __grid_constant__ Call c, int64_t step) {{ step_block<Generated>(c, step, blockIdx.x, gridDim.x); }}
#endif
PROGRAM evaluate(const __grid_constant__ Call c) {{ evaluate_block<Generated>(c, blockIdx.x, gridDim.x); }}
#else
extern "C" int64_t scratch_bytes(const Call* c) {{ return Generated::ARENA_BYTES + (PARTS == 1 ? 0 : bytes_of_parts(*c)); }}
extern "C" void run(const Call* c) {{ launch_steps<Generated>(*c); }}
extern "C" void evaluate(const Call* c) {{ launch<Generated>(*c, [](auto& c) {{ evaluate_block<Generated>(c, 0, 1); }}); }}
#endif
"""
