"""The trials' parameters, which are stored as JSON, as typed columns."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.files.json_objects import parse_object, read_object
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, read_parquet

PARAMETERS_KEY = b"depthrate_parameters"
"""Key of a compacted trials file's schema metadata: `TypedParameters` as JSON."""

AddedParameters = Callable[[str, int], Mapping[str, Any]]
"""Function (task, version) -> the parameters that the task gained later, with their values in earlier trials."""


def nothing_added(task: str, version: int) -> Mapping[str, Any]:
    """Return no parameters, for tasks that gained none."""
    return {}


@dataclass(frozen=True)
class TypedParameters:
    """Parameters of trials that all have the same ones: values that all trials share, and columns of the rest."""

    names: list[str]
    """All parameters, in the order of the trials' JSON."""
    constants: dict[str, Any]
    varying: pa.Table

    @staticmethod
    def from_columns(columns: Mapping[str, pa.Array]) -> TypedParameters:
        """Split columns of at least one row."""
        constants, varying = {}, dict[str, pa.Array]()
        for name, column in columns.items():
            values = column.to_pylist()
            if len(set(map(repr, values))) == 1:
                constants[name] = values[0]
            else:
                varying[name] = column
        return TypedParameters(list(columns), constants, pa.Table.from_arrays(list(varying.values()), list(varying)))

    @staticmethod
    def from_metadata(metadata: Mapping[bytes, bytes] | None, num_rows: int) -> TypedParameters | None:
        """Return the parameters that `with_typed_parameters` stored with a file's trials, or None if it stored none."""
        try:
            fields = read_object((metadata or {})[PARAMETERS_KEY])
            varying = read_parquet(base64.b64decode(fields["varying"])) if fields["varying"] else pa.table({})
            names, constants = list(map(str, fields["names"])), dict(fields["constants"])
        except UNREADABLE_ERRORS:
            return None
        is_typed = all(any(kind.equals(known) for known in _ARROW_AGREES) for kind in varying.schema.types)
        is_whole = sorted(names) == sorted([*constants, *varying.column_names]) and varying.num_rows in (num_rows, 0)
        return TypedParameters(names, constants, varying) if is_typed and is_whole else None


def with_typed_parameters(trials: pa.Table) -> pa.Table:
    """Return trials with their parameters in the schema's metadata, so that readers need not parse each trial's JSON.

    Trials of several versions of a task, with different parameters, or with values of several types get no typed parameters.
    """
    texts = trials["params"].to_pylist()
    firsts = dict(zip(reversed(trials["attempt_id"].to_pylist()), reversed(texts), strict=True))
    names = {frozenset(parse_object(text)) for text in firsts.values()}  # one attempt's trials have the same parameters
    versions = set(zip(trials["task"].to_pylist(), trials["task_version"].to_pylist(), strict=True))
    columns = parsed_by_arrow(texts) if len(names) == len(versions) == 1 else None
    if columns is None or names != {frozenset(columns)}:
        return trials
    typed, sink = TypedParameters.from_columns(columns), io.BytesIO()
    if typed.varying.num_columns:
        pq.write_table(typed.varying, sink, compression="zstd")
    fields = {"names": typed.names, "constants": typed.constants, "varying": base64.b64encode(sink.getvalue()).decode()}
    return trials.replace_schema_metadata({PARAMETERS_KEY: json.dumps(fields)})


def join_values(parts: Sequence[tuple[int, pa.ChunkedArray | None]]) -> pa.ChunkedArray | None:
    """Join one parameter's values from several parts. Return None if their common type requires the JSON of all parts.

    Args:
        parts: For each part its number of trials, and their values unless it lacks the parameter.
    """
    kinds = {values.type for _, values in parts if values is not None and values.null_count < len(values)}
    if kinds == {pa.int64(), pa.float64()}:
        kinds = {pa.float64()}
    if len(kinds) > 1:
        return None
    kind = min(kinds, default=pa.string(), key=str)
    arrays = [
        pa.chunked_array([pa.nulls(length, kind)])
        if values is None or values.null_count == len(values)
        else values
        if values.type == kind
        else values.cast(kind, safe=False)
        for length, values in parts
    ]
    return pa.chunked_array([chunk for array in arrays for chunk in array.chunks], kind)


def completed_texts(trials: pa.Table, added: AddedParameters) -> list[str]:
    """Return each trial's JSON object, completed by the parameters that its task gained later."""
    texts: list[str] = trials["params"].to_pylist()
    missing: dict[str, str] = {}  # one attempt's trials have the same parameters
    keys = zip(*(trials[name].to_pylist() for name in ("attempt_id", "task", "task_version")), strict=True)
    for index, (attempt_id, task, version) in enumerate(keys):
        if attempt_id not in missing:
            of_task = added(task, version)
            # quotes inside strings are escaped, so this can only be a key
            added_later = {name: value for name, value in of_task.items() if f"{json.dumps(name)}:" not in texts[index]}
            missing[attempt_id] = json.dumps(added_later)[1:-1]
        if missing[attempt_id]:
            fields = texts[index].rstrip()[:-1].rstrip()
            texts[index] = f"{fields}{'' if fields.endswith('{') else ', '}{missing[attempt_id]}}}"
    return texts


def parameter_columns(texts: list[str]) -> dict[str, pa.Array]:
    """Return parameter -> values, from one JSON object per trial.

    A mix of ints and floats becomes floats. Values without a common type, or of a type not supported here, become JSON strings.
    """
    return parsed_by_arrow(texts) or _parsed_by_python(texts)


def parsed_by_arrow(texts: list[str]) -> dict[str, pa.Array] | None:
    """Return the columns as read by Arrow, ten times as fast and without pandas, or None where Python's reader would differ."""
    if not texts:
        return None
    import pyarrow.json

    # a single block, so that a column has one type, with one extra byte, so that no object is cut in two
    content = "\n".join(texts).encode()
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(content) + 1)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(content), read_options=options)
    except pa.ArrowException:
        return None
    if table.num_rows != len(texts):
        return None
    columns = {}
    for name in table.column_names:
        column = table[name].chunk(0)  # one block, one chunk
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), pa.string())
        elif pa.types.is_list(column.type) and pa.types.is_null(column.type.value_type):
            column = _as_lists_of_numbers(column)
        elif pa.types.is_list(column.type) and column.type.value_type == pa.int64():
            column = column.cast(pa.list_(pa.float64()))
        if not any(column.type.equals(known) for known in _ARROW_AGREES):
            return None
        columns[name] = column
    return columns


def _as_lists_of_numbers(column: pa.ListArray) -> pa.Array:
    """Convert lists that are empty or hold nulls to lists of float64.

    `cast` would import pyarrow.compute, which takes 40 ms, and would reject the output of Arrow's reader for several nulls,
    since the reader counts only one.
    """
    nulls = pa.nulls(column.offsets[-1].as_py(), pa.float64())
    return pa.Array.from_buffers(
        *(pa.list_(pa.float64()), len(column), column.buffers()[:2], column.null_count), children=[nulls]
    )


_ARROW_AGREES = (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.list_(pa.float64()))


def _parsed_by_python(texts: list[str]) -> dict[str, pa.Array]:
    rows = [parse_object(text) for text in texts]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _parameter_array([row.get(name) for row in rows]) for name in names}


def _parameter_array(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pa.array(values, pa.int64())
    if kinds and kinds <= {int, float}:
        # Arrow's reader does this with integers that exceed 64 bits
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) <= 1 and kinds != {list}:
        return pa.array(values, pa.string() if not kinds else None)
    if kinds == {list} and all(isinstance(item, int | float) for value in values if value for item in value):
        floats = [None if value is None else [float(item) for item in value] for value in values]
        return pa.array(floats, pa.list_(pa.float64()))
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())
