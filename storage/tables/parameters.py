"""Parameters as typed columns of the trials table.

A trials file holds trials of one version of one task, so each parameter has one type in it. The column has the parameter's
name, or `param_<name>` if a standard column has that name in SQL, which ignores case. `params` holds the same values as JSON,
exactly: integers beyond 64 bits are floats in their column, and the items of a list of integers are floats.

Between files, types may differ. A reader shows int64 and float64 together as float64, and any other two types as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.tables.schema import TRIALS

_LIST = pa.list_(pa.float64())
TYPE_BY_KIND: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "list[int]": _LIST,
    "list[float]": _LIST,
}
"""Declared kind of a parameter -> type of its column. The values of other kinds determine the type."""
PARAMETER_TYPES = {str(kind): kind for kind in (*TYPE_BY_KIND.values(), pa.null())}
"""Types of a parameter's column in a file, by their stored names. `null`: no trial of the file has a value."""
_STANDARD = frozenset(TRIALS.names)

AddedParameters = Callable[[str, int], Mapping[str, Any]]
"""Function (task, version) -> the parameters that the task gained later, with their values in earlier trials."""


def nothing_added(task: str, version: int) -> Mapping[str, Any]:
    """Return no parameters, for tasks that gained none."""
    return {}


def with_parameters(trials: pa.Table, kinds: Mapping[str, str] | None = None) -> pa.Table:
    """Return trials of one version of a task with the parameters in `params` as columns (`parameter_columns`)."""
    columns = parameter_columns([parse_object(text) for text in trials["params"].to_pylist()], kinds or {})
    names = [*trials.column_names, *columns]
    return pa.Table.from_arrays([*trials.columns, *columns.values()], names)


def parameter_columns(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> dict[str, pa.Array]:
    """Return column -> values of some trials' parameters.

    Args:
        rows: Each trial's parameters. Missing ones are null.
        kinds: Declared kinds of parameters.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        column_of(name): _array([row.get(name) for row in rows], TYPE_BY_KIND.get(kinds.get(name, "")))
        for name in names
    }


def column_of(parameter: str, taken: Container[str] = _STANDARD) -> str:
    """Return a parameter's column: `param_<name>` if `taken`, in lower case, has its name."""
    return f"param_{parameter}" if parameter.casefold() in taken else parameter


def _array(values: list[Any], declared: pa.DataType | None) -> pa.Array:
    """Return values as a column of the declared type, or of the type that fits them."""
    if declared is not None:
        try:
            return pa.array(values, declared)
        except (pa.ArrowException, OverflowError, TypeError):  # an integer beyond 64 bits, or another version's values
            return _array(values, None)
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pa.array(values, pa.int64())
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) == 1 and kinds <= {bool, str}:
        return pa.array(values)
    if kinds == {list} and all(isinstance(item, int | float) for value in values if value for item in value):
        return pa.array([None if value is None else [float(item) for item in value] for value in values], _LIST)
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that shows columns of several files: the only type, float64 for int64 and float64, else text.

    Columns without values do not count. If there are no others, it is null.
    """
    kinds = {type_name(kind): kind for kind in types}
    kinds.pop("null", None)
    if len(kinds) < 2:
        return PARAMETER_TYPES.get(*kinds.popitem()) if kinds else pa.null()
    return pa.float64() if kinds.keys() == {"int64", "double"} else pa.string()


def type_name(kind: pa.DataType) -> str:
    """Return the stored name of a parameter's type."""
    # the name of a list's items, which Parquet calls element, is part of the text but not of the type
    return next((name for name, known in PARAMETER_TYPES.items() if known.equals(kind)), str(kind))


def as_type(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a file's values in the `common_type` of several files."""
    if values.type.equals(kind):
        return values
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), kind)])
    if not pa.types.is_string(kind):
        return values.cast(kind, safe=False)
    return pa.chunked_array([pa.array([None if value is None else _text(value) for value in values.to_pylist()], kind)])


def _text(value: Any) -> str:
    """Return a value as text: a text itself, an integer without decimal point whatever its type, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
