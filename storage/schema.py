"""The tables' columns, and how a task's rows become an Arrow table of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1
_REAL, _TEXT = pa.float64(), pa.string()

TRIALS = pa.schema(
    [
        ("trial_id", _TEXT),
        ("sweep", _TEXT),
        ("task", _TEXT),
        ("task_version", pa.int64()),
        ("attempt_id", _TEXT),
        ("pack_id", _TEXT),
        ("status", _TEXT),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("wall_s", _REAL),
        ("steps", pa.int64()),
        ("device", _TEXT),
        ("peak_memory_gb", _REAL),
        ("git_sha", _TEXT),
        ("git_dirty", pa.bool_()),
        ("versions", _TEXT),
        ("host", _TEXT),
        ("job_id", _TEXT),
        ("params", _TEXT),
    ]
)
STATE_COLUMNS = ("trial_id", "attempt_id", "committed_at", "status", "wall_s")
"""What planning and watching need of the trials: at 100,000 trials the parameters alone are 50 MB."""
_KEY = [("trial_id", _TEXT), ("attempt_id", _TEXT), ("step", pa.int64())]
METRICS = pa.schema(
    [
        *_KEY,
        ("split", _TEXT),
        ("layer", pa.int64()),
        ("is_last", pa.bool_()),
        ("nc1", _REAL),
        ("nc1_pinv", _REAL),
        ("nc2a", _REAL),
        ("nc2b", _REAL),
        ("nc3", _REAL),
        ("ncc_accuracy", _REAL),
        ("pfc2", _REAL),
        ("rank", _REAL),
        ("stable_rank", _REAL),
        ("condition_number", _REAL),
        ("relative_position", _REAL),
        ("singular_values", pa.list_(pa.float64())),
        ("class_gram", pa.list_(pa.float32())),
    ]
)
CURVES = pa.schema(
    [
        *_KEY,
        ("split", _TEXT),
        ("loss", _REAL),
        ("objective", _REAL),
        ("objective_gap", _REAL),
        ("accuracy", _REAL),
        ("grad_norm", _REAL),
        ("lr", _REAL),
    ]
)
FEATURES = pa.schema(
    [
        *_KEY,
        ("layer", pa.int64()),
        ("kind", _TEXT),
        ("label", pa.int64()),
        ("sample_index", pa.int64()),
        ("feature", pa.list_(pa.float32())),
    ]
)
"""As readers see it; a file holds `feature` as a fixed-size list of float or halffloat, whose width is its networks' own."""
FITS = pa.schema(
    [
        ("sweep", _TEXT),
        ("metric", _TEXT),
        ("x", _TEXT),
        ("by", _TEXT),
        ("model", _TEXT),
        ("exponent", _REAL),
        ("stderr", _REAL),
        ("ci_low", _REAL),
        ("ci_high", _REAL),
        ("ci_method", _TEXT),
        ("prefactor", _REAL),
        ("floor", _REAL),
        ("r2", _REAL),
        ("aicc", _REAL),
        ("weight", _REAL),
        ("n_points", pa.int64()),
        ("n_trials", pa.int64()),
        ("excluded", _TEXT),
        ("log_power", _REAL),
        ("profile_low", _REAL),
        ("profile_high", _REAL),
        ("p_half", _REAL),
        ("p_one", _REAL),
        ("target", _REAL),
        ("x_at_target", _REAL),
        ("x_at_low", _REAL),
        ("x_at_high", _REAL),
        ("n_unconverged", pa.int64()),
        ("layer", pa.int64()),
        ("filter", _TEXT),
        ("weights", _TEXT),
        ("x_min", _REAL),
        ("p_lack_of_fit", _REAL),
        ("common_exponent", _REAL),
        ("common_low", _REAL),
        ("common_high", _REAL),
        ("p_common", _REAL),
        ("sensitivity", _TEXT),
    ]
)
ATTEMPTS = pa.schema(
    [
        ("attempt_id", _TEXT),
        ("sweep", _TEXT),
        ("pack_id", _TEXT),
        ("trial_ids", pa.list_(_TEXT)),
        ("state", _TEXT),
        ("started_at", _REAL),
        ("heartbeat_at", _REAL),
        ("ended_at", _REAL),
        ("host", _TEXT),
        ("pid", pa.int64()),
        ("job_id", _TEXT),
        ("device", _TEXT),
        ("step", pa.int64()),
        ("num_steps", pa.int64()),
        ("trials_done", pa.int64()),
        ("error_kind", _TEXT),
        ("error", _TEXT),
        ("traceback", _TEXT),
    ]
)
STANDARD = {"trials": TRIALS, "metrics": METRICS, "curves": CURVES, "features": FEATURES}


class TableError(ValueError):
    """A task returned something that is not one of the tables."""


def no_rows(columns: Sequence[str] = TRIALS.names) -> pa.Table:
    """Return an empty table of trials (schema.empty_table() would import pandas)."""
    return pa.Table.from_batches([], pa.schema([TRIALS.field(name) for name in columns]))


def as_trials(table: pa.Table, columns: Sequence[str] = TRIALS.names) -> pa.Table:
    """Return a file's rows with some of the columns of `TRIALS`.

    Raises:
        KeyError, pa.ArrowException: it lacks one, or holds another type.
    """
    table = table.select(list(columns)).replace_schema_metadata(None)
    wanted = no_rows(columns).schema
    return table if table.schema.equals(wanted) else table.cast(wanted)  # cast costs an import


def task_table(name: str, content: Any, *, trial_id: str, attempt_id: str) -> pa.Table:
    """Return one trial's rows of a table with the standard columns first and the task's own after them.

    `content` is a list of dicts, a mapping from column to values, a pandas frame or an Arrow table. Missing standard
    columns are filled: split `train`, step 0, layer 0, is_last where the layer is the largest, else null.

    Raises:
        TableError: the table is unknown, or a column has a type that the store does not keep.
    """
    if name not in ("metrics", "curves", "features"):
        raise TableError(f"task returned a table {name!r}; allowed: metrics, curves, features")
    columns, num_rows = _columns(name, content)
    columns |= {"trial_id": [trial_id] * num_rows, "attempt_id": [attempt_id] * num_rows}
    columns.setdefault("step", [0] * num_rows)
    if name == "features":
        return _feature_table(columns)
    columns.setdefault("split", ["train"] * num_rows)
    if name == "metrics":
        columns.setdefault("layer", [0] * num_rows)
        if "is_last" not in columns:
            last = max(columns["layer"], default=0)
            columns["is_last"] = [layer == last for layer in columns["layer"]]
    standard = STANDARD[name]
    arrays = {}
    for field in standard:
        values = columns.pop(field.name, None)
        arrays[field.name] = _array(name, field.name, [None] * num_rows if values is None else values, field.type)
    arrays |= {own: _own_array(name, own, values) for own, values in columns.items()}
    return pa.table(arrays)


def _columns(name: str, content: Any) -> tuple[dict[str, Any], int]:
    if isinstance(content, pa.Table):
        return {column: content[column].to_pylist() for column in content.column_names}, content.num_rows
    if hasattr(content, "to_dict") and hasattr(content, "columns"):  # a pandas frame, without importing pandas
        return {str(column): content[column].tolist() for column in content.columns}, len(content)
    if isinstance(content, Mapping):
        lengths = {len(values) for values in content.values()}
        if len(lengths) > 1:
            raise TableError(f"table {name!r}: columns have different lengths {sorted(lengths)}")
        return dict(content), lengths.pop() if lengths else 0
    if isinstance(content, Sequence) and all(isinstance(row, Mapping) for row in content):
        names = dict.fromkeys(key for row in content for key in row)
        return {str(key): [row.get(key) for row in content] for key in names}, len(content)
    raise TableError(
        f"table {name!r} is a {type(content).__name__}; return a list of dicts, a mapping from column to values, "
        "a pandas frame or an Arrow table"
    )


def _array(table: str, column: str, values: Any, arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_floating(arrow_type) and not hasattr(values, "dtype"):
        values = [None if value is None else _real(table, column, value) for value in values]
    try:
        return pa.array(values, arrow_type, from_pandas=pa.types.is_floating(arrow_type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise TableError(f"table {table!r}, column {column!r}: {error}; it holds {arrow_type}") from None


def _real(table: str, column: str, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TableError(f"table {table!r}, column {column!r} holds {value!r}; give numbers or null") from None
    return number if math.isfinite(number) else None


def _own_array(table: str, column: str, values: Any) -> pa.Array:
    """Return a task's own column as float64, text or list<float64>: types that every reader can bring together."""
    known = [value for value in values if value is not None]
    if not known:
        return pa.nulls(len(values))  # takes on the column's type in the other trials of its file
    if all(isinstance(value, str) for value in known):
        return pa.array(values, pa.string())
    if all(hasattr(value, "__len__") and not isinstance(value, str) for value in known):
        rows = [None if row is None else [_real(table, column, value) for value in row] for row in values]
        return pa.array(rows, pa.list_(pa.float64()))
    return _array(table, column, list(values), pa.float64())


def _feature_table(columns: dict[str, Any]) -> pa.Table:
    import numpy as np

    missing = {"layer", "kind", "feature"} - columns.keys()
    if missing:
        raise TableError(f"table 'features' lacks the columns {', '.join(sorted(missing))}")
    num_rows = len(columns["kind"])
    feature = np.asarray(columns["feature"])
    if feature.dtype not in (np.float16, np.float32):
        feature = feature.astype(np.float32)
    if feature.ndim != 2:
        raise TableError(f"table 'features': feature has shape {feature.shape}; give one vector of one length a row")
    flat = pa.array(feature.reshape(-1))
    value_field = pa.field("item", flat.type, nullable=False)
    arrays = {
        field.name: _array("features", field.name, columns.get(field.name, [None] * num_rows), field.type)
        for field in FEATURES
        if field.name != "feature"
    }
    vectors = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(value_field, feature.shape[1]))
    return pa.table(arrays | {"feature": vectors})
