"""A network's step as a table of kernel calls, which generated.cpp interprets.

Libraries of generated kernels contain nothing else, so that networks of equal blocks share them at any depth.
"""

import base64
import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

from depthrate.tasks.native.build import kernel_name
from depthrate.tasks.native.library import AnyCall, Call, Library, Mirror, check_layout

ALIGNMENT = 64
"""Bytes to a multiple of which constants and zeros are aligned: a multiple of the vectors of all processors."""


class Base(IntEnum):
    """Memory that contains an argument of a kernel. Mirrors `Base` of generated.cpp."""

    ARENA = 0
    """Memory of a tile."""
    THETA = 1
    """A trial's parameters."""
    STATE = 2
    """A trial's state."""
    CONSTANTS = 3
    ZERO_ROWS = 4
    START = 5
    """Zeros in the first tile of a batch, null in the others."""
    NOTHING = 6
    """Null."""


class Kernel(NamedTuple):
    """A C++ function of a tile's samples (`batch`) and of pointers p0, p1, ..."""

    items: Sequence[str]
    """Type of the numbers that each pointer points to."""
    body: str

    @property
    def symbol(self) -> str:
        """Name of the exported function, which depends on its text only."""
        return kernel_name(self._text("kernel"))

    def source(self) -> str:
        """Return the exported function, which reads its arguments from an array."""
        return self._text(self.symbol)

    def _text(self, name: str) -> str:
        parameters = ["Batch& batch", *(f"{item}* __restrict p{index}" for index, item in enumerate(self.items))]
        arguments = ["batch", *(f"({item}*)p[{index}]" for index, item in enumerate(self.items))]
        return (
            f"INLINE void {name}_of({', '.join(parameters)}) {{\n{self.body}\n}}\n"
            f'extern "C" void {name}(Batch& batch, void* const* p) {{ {name}_of({", ".join(arguments)}); }}\n'
        )


class Statement(NamedTuple):
    """A call of a kernel."""

    kernel: int
    """Number among the table's kernels."""
    places: Sequence[tuple[int, int]]
    """Each argument's base, and the bytes behind it."""


class Piece(NamedTuple):
    """Rows of a parameter with rows of its gradient. Mirrors `Piece` of generated.cpp."""

    rows: int
    numbers: int
    """Numbers of a row."""
    at: int
    """Number of the first one among the parameters."""
    gradient: int
    """Byte of the tile's memory at which the gradient starts."""
    gradient_row: int
    """Numbers from one row of the gradient to the next."""
    group: int
    """Group of weight decay, negative: none."""


@dataclass(frozen=True)
class StepTable:
    """A step's kernels, and the calls of them in order."""

    kernels: Sequence[Kernel]
    prepared: Sequence[Statement]
    """Calls at the start of a step."""
    cleared: Sequence[Statement]
    """Calls at the start of a step's first tile."""
    tile: Sequence[Statement]
    """Calls for each tile."""
    pieces: Sequence[Piece]
    """All trained parameters."""
    samples: int
    """Samples of a tile."""
    arena_bytes: int
    """Bytes of a tile's memory."""
    zero_bytes: int
    """Bytes of zeros that kernels read."""
    constants: bytes

    def sources(self) -> dict[str, str]:
        """Return the source of each kernel by the name of its function."""
        return {kernel.symbol: kernel.source() for kernel in self.kernels}

    def to_text(self) -> str:
        """Return the text from which `from_text` reads the table."""
        return json.dumps({**vars(self), "constants": base64.b64encode(self.constants).decode()})

    @classmethod
    def from_text(cls, text: str) -> "StepTable":
        """Return the table that `to_text` has written."""
        fields = json.loads(text)
        for name, kind in (("kernels", Kernel), ("pieces", Piece)):
            fields[name] = [kind(*values) for values in fields[name]]
        for name in ("prepared", "cleared", "tile"):
            fields[name] = [Statement(kernel, [(base, at) for base, at in places]) for kernel, places in fields[name]]
        return cls(**{**fields, "constants": base64.b64decode(fields["constants"])})


class TableFields(Mirror):
    """Mirror `Table` of generated.cpp: counts, and addresses of constants and of arrays of int64."""

    version = 1
    _fields_: ClassVar[Any] = [
        *((name, ctypes.c_int64) for name in ("samples", "arena_bytes", "num_places", "num_prepared", "num_cleared")),
        *((name, ctypes.c_int64) for name in ("num_tile", "num_pieces")),
        *((name, ctypes.c_void_p) for name in ("constants", "zeros", "places", "statements", "pieces")),
    ]


class TableLibrary(Library):
    """The library of generated.cpp, for the step of one table."""

    def __init__(self, library: ctypes.CDLL, table: StepTable, kernels: Mapping[str, int]):
        """Bind a table whose kernels are at these addresses.

        Raises:
            CallMismatchError: The library was built with other structures.
        """
        super().__init__(library)
        check_layout(library, "table", TableFields)
        addresses = [kernels[kernel.symbol] for kernel in table.kernels]
        places: list[tuple[int, int]] = []
        calls: list[tuple[int, int]] = []
        for statement in (*table.prepared, *table.cleared, *table.tile):
            calls.append((addresses[statement.kernel], len(places)))
            places += statement.places
        self._arrays: dict[str, ctypes.Array[Any]] = {
            "places": _array(places),
            "statements": _array(calls),
            "pieces": _array(table.pieces),
            "constants": _aligned(table.constants),
            "zeros": _aligned(bytes(table.zero_bytes)),
        }
        self.table = TableFields(
            samples=table.samples,
            arena_bytes=table.arena_bytes,
            num_places=len(places),
            num_prepared=len(table.prepared),
            num_cleared=len(table.cleared),
            num_tile=len(table.tile),
            num_pieces=len(table.pieces),
            **{name: ctypes.addressof(array) for name, array in self._arrays.items()},
        )

    def scratch_bytes(self, call: AnyCall) -> int:
        return super().scratch_bytes(self._with_table(call))

    def run(self, call: AnyCall) -> None:
        super().run(self._with_table(call))

    def evaluate(self, call: AnyCall) -> None:
        super().evaluate(self._with_table(call))

    def _with_table(self, call: AnyCall) -> Call:
        assert isinstance(call, Call)
        call.table = ctypes.addressof(self.table)
        return call


def _array(rows: Sequence[Sequence[int]]) -> ctypes.Array[ctypes.c_int64]:
    numbers = [number for row in rows for number in row]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _aligned(content: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return an aligned copy. It keeps the memory that it is part of alive."""
    memory = (ctypes.c_char * (len(content) + ALIGNMENT))()
    offset = -ctypes.addressof(memory) % ALIGNMENT
    copy = (ctypes.c_char * len(content)).from_buffer(memory, offset)
    ctypes.memmove(copy, content, len(content))
    return copy
