"""Pack tables as typed columns for the explorer.

The bytes are gzip of: u32 length of the header, u32 version, the header (JSON), the columns. All numbers are little endian, and
the header and each column are padded to a multiple of 8 bytes. The header has `tables`: name -> {n, columns}, and each column
has name, type (f64, f32, i32, u16 or u8) and offset in bytes after the header. A column with `values` holds indices into them.
"""

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from depthrate.sweeps.trial import canonical_json

VERSION = 1
MAX_VALUES = 64
"""Maximum number of values of a numeric parameter with a dictionary. One with more values is a continuous axis."""
_TYPES = {"f8": "f64", "f4": "f32", "i4": "i32", "u2": "u16", "u1": "u8"}


@dataclass(frozen=True)
class Column:
    """A column: an array, and what the page needs to know of it."""

    name: str
    array: np.ndarray
    facts: Mapping[str, Any] = field(default_factory=dict)


def pack(header: Mapping[str, Any], tables: Mapping[str, Sequence[Column]]) -> bytes:
    """Return tables with a header as bytes. A table without columns is left out."""
    described: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for table, columns in tables.items():
        if not columns:
            continue
        described[table] = {"n": len(columns[0].array), "columns": []}
        for column in columns:
            array = np.ascontiguousarray(column.array)
            raw = _padded(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(), b"\0")
            facts = {"name": column.name, "type": _TYPES[array.dtype.str[1:]], "offset": offset, **column.facts}
            described[table]["columns"].append(facts)
            parts.append(raw)
            offset += len(raw)
    text = json.dumps({**header, "tables": described}, separators=(",", ":"), allow_nan=False, default=str)
    head = _padded(text.encode("utf-8", "replace"), b" ")
    # without a time, so that equal results give equal bytes
    return gzip.compress(np.array([len(head), VERSION], "<u4").tobytes() + head + b"".join(parts), 6, mtime=0)


def _padded(raw: bytes, filler: bytes) -> bytes:
    return raw + filler * (-len(raw) % 8)


def parameter_column(name: str, values: Sequence[Any]) -> Column:
    """Return a parameter: numbers, words, booleans and null, in a dictionary sorted by kind and value.

    Lists become their JSON text. A number is never rounded: 0.003 stays 0.003.
    """
    # 1, 1.0 and True are equal keys, but other values
    keys = [(type(value).__name__, value) if _is_scalar(value) else ("list", canonical_json(value)) for value in values]
    distinct = sorted(set(keys), key=lambda key: (_kind(key[1]), key[1] is not None and key[1]))
    if len(distinct) > MAX_VALUES and all(_kind(value) in (0, 3) for _, value in distinct):
        numbers = [math.nan if value is None else float(value) for _, value in keys]
        return Column(name, np.array(numbers, np.float64), {"role": "param"})
    place = {key: index for index, key in enumerate(distinct)}
    kind = np.uint8 if len(distinct) <= 256 else np.uint16 if len(distinct) <= 65536 else np.int32
    codes = np.fromiter((place[key] for key in keys), kind, len(keys))
    return Column(name, codes, {"role": "param", "values": [value for _, value in distinct]})


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _kind(value: Any) -> int:
    """Return the place of a kind of value in a dictionary: numbers, booleans, words, null."""
    return 3 if value is None else 1 if isinstance(value, bool) else 0 if isinstance(value, int | float) else 2


def dictionary_column(name: str, values: Sequence[str], order: Iterable[str], **facts: Any) -> Column:
    """Return a column of words, with the words that occur in the given order."""
    present = set(values)
    words = [word for word in order if word in present]
    place = {word: index for index, word in enumerate(words)}
    return Column(
        name, np.fromiter((place[value] for value in values), np.uint8, len(values)), {**facts, "values": words}
    )


def metric_column(name: str, values: np.ndarray, **facts: Any) -> Column:
    """Return numbers as float32, or as float64 if one of them is outside its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(values[np.isfinite(values) & (values != 0)])
        fits = not size.size or (size.min() > np.finfo(np.float32).tiny and size.max() < np.finfo(np.float32).max)
        return Column(name, values.astype(np.float32 if fits else np.float64), facts)
