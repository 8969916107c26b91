"""Emission of a planned step for any target: kernels and their calls, the text of loops over rows, positions, numbers.

`emit.py` and `cuda_emit.py` add what depends on the target: expressions (`Language`), places in memory, and products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isinf, isnan, prod
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

from depthrate.tasks.native.codegen.cuda_plan import CudaPlan
from depthrate.tasks.native.codegen.lower import Part
from depthrate.tasks.native.codegen.operations import POINTWISE
from depthrate.tasks.native.codegen.plan import Loop, Plan
from depthrate.tasks.native.codegen.values import Kind, Value, View, merged_rows

INDEX_BYTES = 8
"""Bytes of an index in memory, also where numbers are float32."""
Operand = Callable[[View | float, bool], str]
"""Returns the text of an operand, as a mask or as numbers."""
Flags = Sequence[tuple[str, str]]
"""Names of a kernel's flags, and their values in a call."""
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


class Reduction(NamedTuple):
    """How a target reduces a row to one number."""

    neutral: str
    start: str
    """The neutral number, as each of the numbers in which a row's columns are reduced."""
    step: str
    """Statement that includes `{text}` in `{result}`."""
    function: str
    """Function of these numbers that returns the row's."""


@dataclass(frozen=True)
class Language:
    """How a target's C++ writes what all targets compute."""

    integers: str
    """Type of indices in memory."""
    numbers: str
    """Type of numbers that are computed together."""
    masks: str
    """Type of masks in an array."""
    as_masks: str
    """Expression of masks in this type."""
    each_row: str
    """Head of a loop over the rows that are computed together, `{rows}` of them."""
    column: str
    """Index of a row's numbers in an array."""
    column_constant: str
    """Expression of a constant beside the columns of a row."""
    row_constant: str
    """Expression of a constant beside the numbers of rows."""
    row_number: str
    """Expression of the number of a row, or of rows, that is computed once."""
    row_declaration: str
    """Text in front of it where it is computed."""
    reductions: Mapping[str, Reduction]
    entry: str
    """Expression of a row of a table, from an index."""
    look_up: str
    """Body of a kernel that copies rows p1 of a table to p0 by indices p2."""
    scatter: str
    """Body of a kernel that adds rows p1 to rows of a table p0 by indices p2."""
    adds: str
    """Sign of a move that adds to a parameter's gradient."""


class Location(Protocol):
    """A place in memory."""

    @property
    def item(self) -> str:
        """Type of the numbers there."""

    def behind(self, numbers: int, item_bytes: int) -> Self:
        """Return the place of a number that is this many numbers behind."""


Place = TypeVar("Place", bound=Location)
Call = TypeVar("Call")


class Matrices(NamedTuple):
    """Pairs of matrices of the same shape that a product multiplies."""

    left: Tensor
    """The first left matrix."""
    right: Tensor
    num_pairs: int
    left_step: int
    """Numbers from one left matrix to the next, 0 for one pair."""
    right_step: int

    @property
    def note(self) -> str:
        """Return the comment in front of a product."""
        (rows, inner), columns = self.left.shape, self.right.shape[1]
        return f"  // {self.num_pairs} x [{rows}, {inner}] [{inner}, {columns}]\n"


class Emitter(ABC, Generic[Place, Call]):
    """Kernels of a planned step, as functions of the places that they read and write, and calls of them."""

    language: Language

    def __init__(self, plan: Plan | CudaPlan, shape: Shape):
        self.program, self.in_place, self.shape = plan.program, plan.in_place, shape
        self.layout = plan.program.layout

    @abstractmethod
    def call(self, body: str, places: Sequence[Place], flags: Flags = ()) -> Call:
        """Return a call of a function of places p0, p1, ..., and of flags with their names."""

    @abstractmethod
    def place(self, value: Value) -> Place:
        """Return the place of a value."""

    @abstractmethod
    def _zero(self, place: Place, numbers: int) -> Call:
        """Return a call that writes zeros to a place."""

    @abstractmethod
    def _loop(self, loop: Loop) -> list[Call]:
        """Return the calls of a loop."""

    @abstractmethod
    def _product(self, value: Value) -> Call:
        """Return the call of a product."""

    @abstractmethod
    def _start_of_sum(self, value: Value) -> tuple[list[Call], Flags]:
        """Return the calls in front of a kernel that adds to a value, and the kernel's flags."""

    @abstractmethod
    def _gradient(self, parameter: Value) -> tuple[Place, Tensor]:
        """Return the place of a parameter's gradient, and its view."""

    @abstractmethod
    def _flags_of_term(self, parameter: Value) -> Flags:
        """Return the flags of a kernel that adds a term to a parameter's gradient."""

    @abstractmethod
    def _moved(self, axes: Sequence[tuple[int, int, int]], sign: str) -> str:
        """Return the body of a kernel that moves the numbers p0 to p1, over axes of sizes and of strides of p1 and p0."""

    # ---- Memory ----

    def at(self, view: View) -> Place:
        """Return the place of a view's first number."""
        return self._behind(self.place(view.value), view.seen)

    def item(self, value: Value) -> str:
        """Return the type of a value's numbers in memory."""
        is_integer = (value is self.program.x and value.is_flat) or is_index(value)
        return self.language.integers if is_integer else "Number"

    def row(self, value: Value) -> int:
        """Return the numbers from one row of a value to the next."""
        return value.row_stride(self.layout)

    def _behind(self, place: Place, seen: Tensor) -> Place:
        """Return the place of a tensor's first number, from that of the first number of its storage."""
        item_bytes = INDEX_BYTES if place.item == self.language.integers else self.layout.number_bytes
        return place.behind(int(seen.storage_offset()), item_bytes)

    # ---- Kernels ----

    def _clear(self, value: Value) -> Call:
        """Return a call that fills a value with zeros."""
        return self._zero(self.place(value), value.rows * self.row(value))

    def _step(self, step: Loop | Value) -> list[Call]:
        """Return the calls of a step."""
        if isinstance(step, Loop):
            return self._loop(step)
        if step.kind is Kind.PRODUCT:
            return [self._product(step)]
        if step.kind is Kind.COPY:
            return self._copy(step)
        return self._table(step)

    def _matrices(self, value: Value) -> Matrices:
        """Return the matrices that a product multiplies."""
        left, right = (view.seen for view in value.views)
        if left.ndim == 3:
            return Matrices(left[0], right[0], left.shape[0], left.stride(0), right.stride(0))
        return Matrices(left, right, 1, 0, 0)

    def _copy(self, value: Value) -> list[Call]:
        parts: Sequence[Part] = value.operation
        covered = sum(seen.numel() for _, seen, adds in parts if not adds)
        return [
            *([self._clear(value)] if covered < prod(value.shape) else []),
            *(self._move(view, self.place(value), seen, "+=" if adds else "=") for view, seen, adds in parts),
        ]

    def _move(self, view: View, place: Place, seen: Tensor, sign: str, flags: Flags = ()) -> Call:
        """Return the call that moves a view's numbers to those of a tensor of the same shape, whose storage is at a place."""
        strides = zip(seen.shape, seen.stride(), view.seen.stride(), strict=True)
        axes = sorted((axis for axis in strides if axis[0] > 1), key=lambda axis: (-axis[1], -axis[2]))
        return self.call(self._moved(axes, sign), [self.at(view), self._behind(place, seen)], flags)

    def _table(self, value: Value) -> list[Call]:
        view, index = value.views[0], value.operation
        places = [self.place(value), self.at(view), self.at(index)]
        texts = {
            "entry": self.language.entry.format(f"p2[{position_of(flat_axes(index.seen), 'r')}]"),
            "rows": value.rows,
            "columns": value.columns,
            "count": prod(index.shape),
            "outputs": prod(index.shape) * value.columns,
            "row": self.row(value),
        }
        if value.kind is Kind.LOOK_UP:
            return [self.call(self.language.look_up.format(**texts, table_row=view.seen.stride(0)), places)]
        before, flags = self._start_of_sum(value)
        body = self.language.scatter.format(**texts, source=position_of(merged_rows(view.seen), "r"))
        return [*before, self.call(body, places, flags)]

    def _gradient_terms(self) -> list[Call]:
        """Add the terms that no kernel adds in place."""
        calls = []
        for name, group in self.program.gradients.items():
            parameter = self.program.parameters[name]
            place, seen = self._gradient(parameter)
            for term in group:
                if term.value not in self.in_place:
                    view = View(term.value, term.seen.expand(parameter.shape))
                    flags = self._flags_of_term(parameter)
                    calls.append(self._move(view, place, seen, self.language.adds, flags))
        return calls


@dataclass
class Pass:
    """Statements of a pass over the columns of a row."""

    width: int
    """Columns."""
    computed: Sequence[Value]
    before: list[str] = field(default_factory=list)
    """Statements in front of the pass."""
    opening: list[str] = field(default_factory=list)
    """Statements in front of those of each number, for several columns or rows at a time."""
    body: list[str] = field(default_factory=list)
    closing: list[str] = field(default_factory=list)
    """Statements behind those of each number."""
    loaded: dict[Any, str] = field(default_factory=dict)
    """What is read from memory -> the name of its numbers."""

    def name(self, view: View) -> tuple[str, bool]:
        """Return the name of a view's numbers, and whether it is new."""
        key = (view.value, view.seen.storage_offset(), view.shape, view.seen.stride())
        is_new = key not in self.loaded
        return self.loaded.setdefault(key, f"l{len(self.loaded)}"), is_new


class LoopText(ABC, Generic[Place]):
    """The text of a loop over rows, in phases between sums over a row, each one pass over the row."""

    rows: int | str
    """Rows that are computed together."""

    def __init__(self, emitter: Emitter[Place, Any], loop: Loop):
        self.loop, self.layout, self.language = loop, emitter.layout, emitter.language
        self.places: list[Place] = []
        """Places that the loop's function is given."""
        self._pointers: dict[Place, str] = {}
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
    def _numbers(self, width: int) -> int | str:
        """Return how many vectors, or numbers of a lane, a row of this width has."""

    @abstractmethod
    def _load(self, view: View, current: Pass) -> str:
        """Return the text of a view's numbers in memory, in a pass over the columns of a row."""

    @abstractmethod
    def _load_number(self, view: View) -> str:
        """Return the text of a row's number in memory."""

    @abstractmethod
    def _repeated(self, value: Value) -> tuple[str, bool]:
        """Return the text of a row's number in a pass over the columns, and whether it is a mask."""

    @abstractmethod
    def _inside(self, text: str, neutral: str, width: int) -> str:
        """Return the text of numbers that are to be reduced, neutral ones behind the last column."""

    @abstractmethod
    def _store(self, value: Value, text: str, current: Pass) -> None:
        """Add statements that store numbers of a row."""

    @abstractmethod
    def _store_number(self, value: Value, text: str) -> list[str]:
        """Return statements that store a row's number."""

    @abstractmethod
    def _reduced(self, value: Value, function: str) -> str:
        """Return the text of a row's reduced number."""

    @abstractmethod
    def _text_of(self, current: Pass) -> list[str]:
        """Return the text of a pass that has statements."""

    def _add_to_sums(self, sums: Sequence[Value], current: Pass) -> None:
        """Add statements that add to sums over rows. A target whose sums are kernels of their own has no sums in loops."""

    @property
    def each_row(self) -> str:
        """Return the head of a loop over the rows that are computed together."""
        return self.language.each_row.format(rows=self.rows)

    def _statements_of_rows(self, statements: Sequence[str]) -> list[str]:
        """Return statements that compute a row's number, repeated for the rows that are computed together if need be."""
        return [*statements]

    def _named(self, place: Place) -> str:
        """Return the pointer to a place."""
        if place not in self._pointers:
            self._pointers[place] = f"p{len(self.places)}"
            self.places.append(place)
        return self._pointers[place]

    def _kept(self, value: Value) -> str:
        """Return the declaration of a row."""
        kind = self.language.masks if value.is_boolean else self.language.numbers
        return f"{kind} k{self.names[value]}[{self.rows}][{self._numbers(value.columns)}];"

    def _columns(self, width: int, computed: Sequence[Value], sums: Sequence[Value]) -> list[str]:
        """Return a pass over the columns of a row, which computes values and adds to sums over rows."""
        current = Pass(width, computed)
        for value in computed:
            name = self.names[value]
            if value.kind is Kind.REDUCE:
                self._reduce(value, current)
                continue
            text = self._expression(value, lambda item, masks: self._operand(item, masks, current))
            current.body.append(f"const auto t{name} = {text};")
            if self._is_kept(value):
                kept = self.language.as_masks.format(f"t{name}") if value.is_boolean else f"t{name}"
                current.body.append(f"k{name}[r][{self.language.column}] = {kept};")
            if value in self.loop.stored:
                self._store(value, _as_number(value, f"t{name}"), current)
        self._add_to_sums(sums, current)
        return [*current.before, *(self._text_of(current) if current.body else [])]

    def _reduce(self, value: Value, current: Pass) -> None:
        """Add statements that reduce a row's numbers to those that are computed together."""
        name, reduction = self.names[value], self.language.reductions[value.operation]
        current.before.append(
            f"{self.language.numbers} r{name}[{self.rows}]; {self.each_row} r{name}[r] = {reduction.start};"
        )
        text = self._inside(self._operand(value.operands[0], False, current), reduction.neutral, current.width)
        current.body.append(reduction.step.format(text=text, result=f"r{name}[r]"))

    def _number(self, value: Value) -> list[str]:
        """Return statements that compute a number of a row."""
        if value.kind is Kind.REDUCE and self._width(value) > 1:
            text = self._reduced(value, self.language.reductions[value.operation].function)
        elif value.kind is Kind.REDUCE:
            text = self._operand_number(value.operands[0], False)
        else:
            text = self._expression(value, self._operand_number)
        if value.is_boolean:
            text = self.language.as_masks.format(text)
        name = self.language.row_number.format(self.names[value])
        statements = [f"{self.language.row_declaration}{name} = {text};"]
        if value in self.loop.stored:
            statements += self._store_number(value, _as_number(value, name))
        return self._statements_of_rows(statements)

    def _operand(self, item: View | float, masks: bool, current: Pass) -> str:
        """Return the text of an operand in a pass over the columns of a row."""
        if not isinstance(item, View):
            return self.language.column_constant.format(literal(item))
        value, is_mask = item.value, self._own(item)
        if not is_mask:
            text = self._load(item, current)
        elif value.columns == 1:
            text, is_mask = self._repeated(value)
        else:
            name = self.names[value]
            text = f"t{name}" if value in current.computed else f"k{name}[r][{self.language.column}]"
        return _as_wanted(value, text, is_mask, masks)

    def _operand_number(self, item: View | float, masks: bool) -> str:
        """Return the text of an operand that is a number of a row."""
        if not isinstance(item, View):
            return self.language.row_constant.format(literal(item))
        is_own = self._own(item)
        text = self.language.row_number.format(self.names[item.value]) if is_own else self._load_number(item)
        return _as_wanted(item.value, text, is_own, masks)

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


def _as_number(value: Value, text: str) -> str:
    return _as_wanted(value, text, True, False)


def _as_wanted(value: Value, text: str, is_mask: bool, masks: bool) -> str:
    """Return the text of a value's numbers, or of its masks if it has these and they are wanted."""
    if not value.is_boolean or is_mask == masks:
        return text
    return f"({text} != 0)" if masks else f"to_number({text})"


def is_repeated(seen: Tensor) -> bool:
    """Return whether all columns of a row read the same number."""
    return seen.shape[-1] == 1 or seen.stride(-1) == 0


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
