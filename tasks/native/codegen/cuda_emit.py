"""CUDA C++ of a planned step, see `cuda.h`.

As on a CPU each kernel and loop is a function of the places that it reads and writes, so that equal blocks of a network share
their code. A place is an address in global memory, or a number of bytes in a block's shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from depthrate.tasks.native.codegen.cuda_plan import CudaPlan, Tuning
from depthrate.tasks.native.codegen.emitter import (
    Emitter,
    Flags,
    Language,
    LoopText,
    Pass,
    Reduction,
    Shape,
    is_repeated,
    number_text,
    position_of,
)
from depthrate.tasks.native.codegen.plan import Loop
from depthrate.tasks.native.codegen.values import Kind, Value, View, merged_rows, up

MAX_ROWS = 4
TIMED_STATEMENTS = 5
"""Statements that are counted first when a step is timed: samples, targets, loss, update, and a whole step."""
TILES = ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (2, 1), (1, 2), (1, 1))
"""Rows and columns of a product that a thread computes."""
LANGUAGE = Language(
    integers="int64_t",
    numbers="Lanes",
    masks="Flags",
    as_masks="as_flags({})",
    each_row="UNROLL for (int r = 0; r < {rows}; r++)",
    column="v",
    column_constant="{}",
    row_constant="{}",
    row_number="s{}[r]",
    row_declaration="",
    reductions={
        "maximum": Reduction(
            neutral="-INFINITY",
            start="-INFINITY",
            step="{{ const Lanes x = {text}; {result} = pick(x > {result}, x, {result}); }}",
            function="maximum_of",
        ),
        "sum": Reduction(
            neutral="Number(0)", start="Number(0)", step="{result} = {result} + {text};", function="sum_of"
        ),
    },
    entry="(int){}",
    look_up=(
        "  PHASE\n    for (int at = tid; at < {outputs}; at += THREADS) {{\n"
        "      const int r = at / {columns}, j = at % {columns};\n"
        "      p0[r * {row} + j] = p1[{entry} * {table_row} + j];\n    }}\n  END"
    ),
    scatter=(
        "  scatter<{rows}, {columns}, {count}, {row}>(p1, p0, adds, [](int r) {{ return {source}; }}, "
        "[&](int r) {{ return {entry}; }});"
    ),
    adds="adds",
)
"""C++ of the lanes of warps, see `cuda.h`."""


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
    is_aligned: bool = field(default=False, compare=False)
    """Whether it is a multiple of 16 bytes."""
    item: str = "Number"

    def behind(self, numbers: int, item_bytes: int) -> Address:
        """Return the place of a number that is this many numbers behind."""
        if not numbers:
            return self
        is_aligned = self.is_aligned and numbers % 4 == 0
        step = numbers * item_bytes if self.is_shared else numbers
        return Address(f"{self.text} + {step}", self.is_shared, is_aligned, self.item)

    @property
    def passed(self) -> str:
        """Return the text of a pointer."""
        return f"in_shared<{self.item}>({self.text})" if self.is_shared else self.text


def emit_cuda(plan: CudaPlan, shape: Shape, tuning: Tuning) -> CudaSource:
    """Return the source of a planned step."""
    return _Emitter(plan, shape, tuning).source()


class _Emitter(Emitter[Address, str]):
    language = LANGUAGE

    def __init__(self, plan: CudaPlan, shape: Shape, tuning: Tuning):
        super().__init__(plan, shape)
        self.plan, self.tuning = plan, tuning
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
        x = self.writes(program.x)
        second = x[1].passed if len(x) > 1 else f"({self.item(program.x)}*)nullptr"
        target, weight = self.place(program.target), self.place(program.weight)
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
            item=self.item(program.x),
            x=x[0].passed,
            second=second,
            x_row=program.x.row_stride(self.layout),
            target=target.passed,
            classes=program.target.columns,
            target_row=program.target.row_stride(self.layout),
            has_targets=str(shape.has_targets).lower(),
            smoothing=repr(float(shape.label_smoothing)),
            weight=weight.passed,
            loss=self.place(program.loss).passed,
            output=self.place(output).passed,
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

    def place(self, value: Value) -> Address:
        """Return the place from which a value is read at this step."""
        if value.kind is Kind.PARAMETER:
            return Address(f"trial.theta + {value.address}")
        if value.kind is Kind.STATE:
            return Address(f"(Number*)trial.state + {value.address}")
        item = self.item(value)
        if value.kind is Kind.CONSTANT:
            name = self.constants.setdefault(value, f"constant_{len(self.constants)}")
            return Address(f"({item}*){name}", item=item)
        if value in self.in_place:
            address = self.in_place[value].address
            return Address(f"gradient + {address}", is_aligned=address % 4 == 0)
        if value in self.plan.shared:
            place, last = self.plan.shared[value]
            if self.time <= last:
                return Address(str(place), True, True, item)
        return Address(f"({item}*)(arena + {self.plan.arena[value]})", False, True, item)

    def writes(self, value: Value) -> list[Address]:
        """Return the places to which a value is written at this step."""
        places = [self.place(value)]
        if value in self.plan.shared and value in self.plan.arena:
            places.append(
                Address(f"({self.item(value)}*)(arena + {self.plan.arena[value]})", False, True, places[0].item)
            )
        return places

    def row(self, value: Value) -> int:
        """Return the numbers from one row of a value to the next. Gradients are not padded."""
        return value.columns if value in self.in_place else super().row(value)

    def _adds(self, value: Value) -> str:
        """Return whether a step adds to what is there: a parameter's gradient, of earlier tiles or steps."""
        parameter = self.in_place.get(value)
        return "false" if parameter is None else self._adds_to(parameter)

    def _adds_to(self, parameter: Value) -> str:
        if parameter in self.written:
            return "true"
        self.written.add(parameter)
        return "!is_first"

    def _constant(self, value: Value, name: str) -> str:
        assert value.data is not None
        numbers = ", ".join(number_text(number) for number in value.data.flatten().tolist())
        return f"TABLE {self.item(value)} {name}[] = {{{numbers}}};"

    # ---- Functions ----

    def call(self, body: str, addresses: Sequence[Address], flags: Flags = ()) -> str:
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
        if not isinstance(step, Loop) and step.kind is Kind.ROW_SUM:
            return [self._row_sum(step)]
        return super()._step(step)

    def _loop(self, loop: Loop) -> list[str]:
        return [self.call(*_CudaLoop(self, loop).text())]

    # ---- Products ----

    def _product(self, value: Value) -> str:
        left, right = value.views
        matrices = self._matrices(value)
        a, b, count, a_step, b_step = matrices
        (m, k), n = a.shape, b.shape[1]
        places = [self.at(left), self.at(right)]
        is_aligned = [
            place.is_aligned and (count == 1 or step % 4 == 0)
            for place, step in zip(places, (a_step, b_step), strict=True)
        ]
        types = [_matrix(a, is_aligned[0]), _matrix(b.t(), is_aligned[1])]
        outputs = self.writes(value)
        row = self.row(value)
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
        factors = f"{types[0]}{{p0}}, {types[1]}{{p1}}"
        copies = [count == 1 and not place.is_shared for place in places]
        if not any(copies):
            tm, tn = self._tile(count, m, n, self.tuning.threads)
            body = f"{matrices.note}  products<{count}, {m}, {n}, {k}, {tm}, {tn}, {a_step}, {b_step}>({factors}, {target});"
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
        body = f"{matrices.note}  product<{sizes}, {str(is_ahead).lower()}>({factors}, {target}, {scratch});"
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

    def _zero(self, place: Address, numbers: int) -> str:
        return f"fill_zero({place.passed}, {numbers});"

    def _start_of_sum(self, value: Value) -> tuple[list[str], Flags]:
        return [], [("adds", self._adds(value))]

    def _gradient(self, parameter: Value) -> tuple[Address, Tensor]:
        return Address(f"gradient + {parameter.address}"), torch.empty(parameter.shape, device="meta")

    def _flags_of_term(self, parameter: Value) -> Flags:
        return [("adds", self._adds_to(parameter))]

    def _moved(self, axes: Sequence[tuple[int, int, int]], sign: str) -> str:
        target = position_of([(size, to) for size, to, _ in axes], "at")
        origin = position_of([(size, of) for size, _, of in axes], "at")
        total = prod(size for size, *_ in axes)
        if sign == LANGUAGE.adds:
            statement = f"{{ const Number v = p0[{origin}]; p1[{target}] = adds ? p1[{target}] + v : v; }}"
        else:
            statement = f"p1[{target}] {sign} p0[{origin}];"
        return f'  PHASE\n    _Pragma("unroll 4") for (int at = tid; at < {total}; at += THREADS) {statement}\n  END'

    def _row_sum(self, value: Value) -> str:
        view = value.views[0]
        seen, rank = view.seen, view.seen.ndim
        reduced = [axis for axis in range(rank - 1) if value.shape[axis] == 1 and seen.shape[axis] > 1]
        kept = [axis for axis in range(rank) if axis not in reduced]
        outputs = prod(seen.shape[axis] for axis in kept)
        terms = prod(seen.shape[axis] for axis in reduced)
        of_output = [(seen.shape[axis], seen.stride(axis)) for axis in kept]
        of_term = [(seen.shape[axis], seen.stride(axis)) for axis in reduced]
        row, columns = self.row(value), value.columns
        adds = self._adds(value)
        body = (
            f"  row_sums<{outputs}, {terms}>(p0, p1, adds, [](int o, int q) {{ return {position_of(of_output, 'o')} + "
            f"{position_of(of_term, 'q')}; }}, [](int o) {{ return o / {columns} * {row} + o % {columns}; }}, p2);"
        )
        addresses = [self.at(view), self.place(value), Address(str(self.plan.scratch[self.time][0]), True, True)]
        return self.call(body, addresses, [("adds", adds)])


class _CudaLoop(LoopText[Address]):
    """The text of a loop over rows for warps, in phases between sums over a row."""

    def __init__(self, emitter: _Emitter, loop: Loop):
        super().__init__(emitter, loop)
        self.cuda = emitter
        self._first: dict[tuple[str, str, str], str] = {}
        """Pointer, position and columns of a number of each lane that is read before all phases -> its name."""
        widths = [self._width(value) for value in loop.computed]
        widest = max(widths, default=1)
        self.lanes = 1
        while self.lanes < 32 and self.lanes * self._group(widest) < widest:
            self.lanes *= 2
        numbers = max(self._numbers(width) for width in {*widths, 1})
        self.rows: int = max(1, min(MAX_ROWS, emitter.tuning.unrolled // numbers)) if widest > 1 else 1
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
            f"{self.each_row} {{ const Ints row = {row}; "
            f"q[r] = {f'least(row, {self.loop.rows - 1})' if self.rest else 'row'}; "
            f"there[r] = {f'row < {self.loop.rows}' if self.rest else 'true'}; }}",
        ]
        first = [
            f"Lanes {name}[{self.rows}]; {self.each_row} {{ {columns} {name}[r] = one({pointer}, Ints({position})); }}"
            for (pointer, position, columns), name in self._first.items()
        ]
        inner = "\n      ".join([*head, *first, *lines])
        body = (
            f"  WARPS_PHASE\n    for (int i = warp * {per_warp}; i < {self.loop.rows}; i += NUM_WARPS * {per_warp}) {{\n"
            f"      {inner}\n    }}\n  END"
        )
        return body, self.places

    def _load(self, view: View, current: Pass) -> str:
        width, is_one = current.width, is_repeated(view.seen)
        place, axes = self.cuda.at(view), merged_rows(view.seen)
        pointer, position = self._named(place), position_of(axes, "q[r]")
        if is_one or self._numbers(width) == 1:
            columns = "" if is_one else self._column(width)
            return self._read_first(pointer, position if is_one else f"{position} + c", columns)
        name, is_new = current.name(view)
        if is_new:
            group = self._group(width)
            is_aligned = place.is_aligned and group == 4 and all(stride % 4 == 0 for _, stride in axes)
            types = f"{group}, {str(is_aligned).lower()}, 1"
            current.opening.append(f"Lanes {name}[{group}]; load<{types}>({name}, {pointer}, {position} + c);")
        return f"{name}[e]"

    def _repeated(self, value: Value) -> tuple[str, bool]:
        return self.language.row_number.format(self.names[value]), True

    def _is_masked(self, width: int) -> bool:
        """Return whether some lanes are behind a row's last column."""
        return width % (self._group(width) * self.lanes) != 0

    def _column(self, width: int) -> str:
        """Return statements that compute a lane's first column."""
        group = self._group(width)
        column = f"b * {group * self.lanes} + l * {group}"
        if not self._is_masked(width):
            return f"const Ints c = {column};"
        return (
            f"const Ints wished = {column}; const Flags inside = wished < {width}; "
            f"const Ints c = least(wished, {width - group});"
        )

    def _inside(self, text: str, neutral: str, width: int) -> str:
        return f"pick(inside, {text}, {neutral})" if self._is_masked(width) else text

    def _store(self, value: Value, text: str, current: Pass) -> None:
        name, group, row = self.names[value], self._group(current.width), value.row_stride(self.layout)
        there = "there[r] & inside" if self._is_masked(current.width) else "there[r]"
        current.opening.append(f"Lanes o{name}[{group}];")
        current.body.append(f"o{name}[e] = {text};")
        for place in self.cuda.writes(value):
            is_aligned = str(place.is_aligned and row % 4 == 0).lower()
            target = f"{self._named(place)}, q[r] * {row} + c"
            current.closing.append(f"store<{group}, {is_aligned}>({target}, o{name}, {there});")

    def _text_of(self, current: Pass) -> list[str]:
        group, width = self._group(current.width), current.width
        unused = "(void)inside; " if self._is_masked(width) else ""
        inner = "\n        ".join(
            [
                self._column(width) + unused,
                *current.opening,
                f"UNROLL for (int e = 0; e < {group}; e++) {{ const int v = b * {group} + e; (void)v;",
                *(f"  {line}" for line in current.body),
                "}",
                *current.closing,
            ]
        )
        parts = self._numbers(width) // group
        return [f"{self.each_row} UNROLL for (int b = 0; b < {parts}; b++) {{", f"        {inner}\n      }}"]

    def _reduced(self, value: Value, function: str) -> str:
        return f"{function}<{self.lanes}>(r{self.names[value]}[r])"

    def _store_number(self, value: Value, text: str) -> list[str]:
        row = value.row_stride(self.layout)
        return [
            f"{{ const Lanes o[1] = {{{text}}}; "
            f"store<1, false>({self._named(place)}, q[r] * {row}, o, there[r] & (l == 0)); }}"
            for place in self.cuda.writes(value)
        ]

    def _statements_of_rows(self, statements: Sequence[str]) -> list[str]:
        return [f"{self.each_row} {{ {' '.join(statements)} }}"]

    def _load_number(self, view: View) -> str:
        return self._read_first(self._named(self.cuda.at(view)), position_of(merged_rows(view.seen), "q[r]"), "")

    def _read_first(self, pointer: str, position: str, columns: str) -> str:
        """Return the name of a number of each lane, which is read before sums over a row are waited for."""
        columns = columns.replace("b * ", "0 * ")
        name = self._first.setdefault((pointer, position, columns), f"h{len(self._first)}")
        return f"{name}[r]"


def _label(step: Loop | Value) -> str:
    if isinstance(step, Loop):
        return f"loop over {step.rows} rows of {sorted({value.columns for value in step.computed})}"
    if step.kind is Kind.PRODUCT:
        return f"product {tuple(step.shape)} of {step.views[0].shape[-1]}"
    return f"{step.kind.value} {tuple(step.shape)}"


def _is_along_rows(seen: Tensor) -> bool:
    """Return whether the first numbers of a matrix's rows are adjacent, as in cuda.h."""
    return seen.stride(0) == 1 and seen.stride(1) != 1


def _matrix(seen: Tensor, is_aligned: bool) -> str:
    return f"Matrix<{seen.stride(0)}, {seen.stride(1)}, {str(is_aligned).lower()}>"


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
