"""The trials' parameters, stored as JSON, as typed columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.tables.schema import TRIALS

AddedParameters = Callable[[str, int], Mapping[str, Any]]
"""Function (task, version) -> parameter -> its value in earlier trials, of parameters that the task gained later."""


def nothing_added(task: str, version: int) -> Mapping[str, Any]:
    """Return no parameters: no task gained any."""
    return {}


def with_parameter_columns(trials: pa.Table, added: AddedParameters = nothing_added) -> pa.Table:
    """Append every parameter as a column.

    A parameter named like a standard column, or like another parameter except for case, becomes param_<name>. A trial
    from before a task gained a parameter has the value from `added`, else null.
    """
    columns = parameter_columns(_completed(trials, added))
    taken = {name.casefold() for name in TRIALS.names}  # SQL sees no difference between n and N
    for name, column in columns.items():
        column_name = f"param_{name}" if name.casefold() in taken else name
        taken.add(name.casefold())
        trials = trials.append_column(column_name, column)
    return trials


def _completed(trials: pa.Table, added: AddedParameters) -> list[str]:
    """Return each trial's JSON object with the parameters that its task gained later."""
    texts: list[str] = trials["params"].to_pylist()
    missing: dict[str, str] = {}  # one attempt's trials have the same parameters
    keys = zip(*(trials[name].to_pylist() for name in ("attempt_id", "task", "task_version")), strict=True)
    for index, (attempt_id, task, version) in enumerate(keys):
        if attempt_id not in missing:
            of_task = added(task, version)
            # quotes inside a str are escaped, so this can only be a key
            added_later = {name: value for name, value in of_task.items() if f"{json.dumps(name)}:" not in texts[index]}
            missing[attempt_id] = json.dumps(added_later)[1:-1]
        if missing[attempt_id]:
            fields = texts[index].rstrip()[:-1].rstrip()
            texts[index] = f"{fields}{'' if fields.endswith('{') else ', '}{missing[attempt_id]}}}"
    return texts


def parameter_columns(texts: list[str]) -> dict[str, pa.Array]:
    """Return parameter -> values, from one JSON object per trial.

    Ints and floats together become floats. Values without a common type, or of a type not supported here, become JSON strings.
    """
    return _parsed_by_arrow(texts) or _parsed_by_python(texts)


def _parsed_by_arrow(texts: list[str]) -> dict[str, pa.Array] | None:
    """Return the columns if Arrow's and Python's readers agree, else None: ten times as fast, and without pandas."""
    if not texts:
        return None
    import pyarrow.json

    # one block, so that a column has one type, and one byte more, so that no object is cut in two
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

    `cast` would import pyarrow.compute, in 40 ms, and reject the output of Arrow's reader for several nulls, since that
    counts one.
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
        # as Arrow's reader does with integers that exceed 64 bits
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) <= 1 and kinds != {list}:
        return pa.array(values, pa.string() if not kinds else None)
    if kinds == {list} and all(isinstance(item, int | float) for value in values if value for item in value):
        floats = [None if value is None else [float(item) for item in value] for value in values]
        return pa.array(floats, pa.list_(pa.float64()))
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())
