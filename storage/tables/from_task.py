"""Conversion of the rows returned by a task to an Arrow table with the store's columns."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from depthrate.storage.tables.custom_columns import check_names
from depthrate.storage.tables.schema import FEATURES, Columns, TableError


def skip_pandas() -> None:
    """Prevent pyarrow from importing pandas with its first array, which takes a third of the time of importing torch.

    pyarrow tries the import once. From then on `pa.array` treats a pandas series as a sequence, until a frame is converted.
    Call this only in processes that run no user code.
    """

    def refuse(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)

    finder = SimpleNamespace(find_spec=refuse)
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


def task_table(
    name: str, content: Any, columns: Columns, *, trial_id: str, attempt_id: str, curves: pa.Table | None = None
) -> pa.Table:
    """Convert one trial's rows of a table: standard columns first, then declared custom columns, then other custom columns.

    `content` is a list of dicts, a mapping from column to values, a pandas frame or an Arrow table. Missing standard
    and declared columns are filled: split `train`, the last step of the trial's `curves` or 0, layer 0, is_last where
    the layer is the largest, and null for all other columns.

    Raises:
        TableError: The table is unknown, or a value is not one that the store supports.
    """
    if name not in ("metrics", "curves", "features"):
        raise TableError(f"task returned table {name!r}, expected metrics, curves or features")
    values, num_rows = _columns(name, content)
    values |= {"trial_id": [trial_id] * num_rows, "attempt_id": [attempt_id] * num_rows}
    if "step" not in values:
        end = 0 if curves is None else max(curves["step"].to_pylist(), default=0)
        values["step"] = [end] * num_rows
    if name == "features":
        return _feature_table(values)
    values.setdefault("split", ["train"] * num_rows)
    if name == "metrics":
        values["layer"] = [_integer(name, "layer", layer) for layer in values.get("layer", [0] * num_rows)]
        if "is_last" not in values:
            last = max(values["layer"], default=0)
            values["is_last"] = [layer == last for layer in values["layer"]]
    arrays = dict(columns.missing(name, num_rows))
    check_names(name, [column for column in values if column not in arrays], arrays)
    custom_types = columns.custom_types(name)
    for column in [column for column in arrays if column in values]:
        array_of = _declared_array if column in custom_types else _array
        arrays[column] = array_of(name, column, values.pop(column), arrays[column].type)
    arrays |= {column: _undeclared_array(name, column, cells) for column, cells in values.items()}
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def pick_columns(name: str, content: Any, columns: Sequence[str]) -> list[list[Any]]:
    """Return some columns of a table as the task returned it, including NaN and infinity. Missing columns are None."""
    values, num_rows = _columns(name, content, columns)
    return [list(values.get(column, [None] * num_rows)) for column in columns]


def layer_parts(content: Any) -> Iterator[Any]:
    """Yield the parts of features, from an iterator of tables, an object with `parts`, one table, or None."""
    if hasattr(content, "parts"):
        content = content.parts()
    if isinstance(content, Iterator):
        yield from content
    elif content is not None:
        yield content


def _columns(name: str, content: Any, wanted: Sequence[str] | None = None) -> tuple[dict[str, Any], int]:
    """Return the columns of a table, all or those `wanted` that it has, and its number of rows."""
    if isinstance(content, pa.Table):
        names = [column for column in content.column_names if wanted is None or column in wanted]
        return {column: content[column].to_pylist() for column in names}, content.num_rows
    if hasattr(content, "to_dict") and hasattr(content, "columns"):  # a pandas frame, without importing pandas
        names = [column for column in content.columns if wanted is None or column in wanted]
        return {column: content[column].tolist() for column in names}, len(content)
    if isinstance(content, Mapping):
        for column, values in content.items():
            if not _is_list(values):
                raise _refused(name, str(column), values, "a list with one value per row")
        lengths = {len(values) for values in content.values()}
        if len(lengths) > 1:
            raise TableError(f"table {name!r}: columns have different lengths {sorted(lengths)}")
        return dict(content), lengths.pop() if lengths else 0
    if isinstance(content, Sequence) and all(isinstance(row, Mapping) for row in content):
        names = list(dict.fromkeys(key for row in content for key in row) if wanted is None else wanted)
        return {key: [row.get(key) for row in content] for key in names}, len(content)
    raise TableError(
        f"table {name!r} is a {type(content).__name__}, expected a list of dicts, a mapping from column to values, "
        "a pandas frame or an Arrow table"
    )


def _array(table: str, column: str, values: Any, arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_floating(arrow_type) and not hasattr(values, "dtype"):
        values = [None if value is None else _real(table, column, value) for value in values]
    elif pa.types.is_string(arrow_type):
        values = [_storable(table, column, value) for value in values]
    elif pa.types.is_integer(arrow_type):
        values = [_integer(table, column, value) for value in values]
    elif wrong := [row for row in values if pa.types.is_list(arrow_type) and not (row is None or _is_list(row))]:
        raise _refused(table, column, wrong[0], "a list of numbers")
    try:
        return pa.array(values, arrow_type, from_pandas=pa.types.is_floating(arrow_type))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise TableError(f"table {table!r}, column {column!r}: {error}. Expected {arrow_type}.") from None


def _storable(table: str, column: str, value: Any) -> Any:
    """Return a str or None. Halves of surrogate pairs in a str are escaped, since no file can store them."""
    if not isinstance(value, str | None):
        raise _refused(table, column, value, "a str")
    return value and value.encode(errors="backslashreplace").decode()


def _integer(table: str, column: str, value: Any) -> Any:
    """Return an int, which may be passed as a float such as 2.0. Other floats are not truncated."""
    value = _scalar(value)
    if isinstance(value, float) and not value.is_integer():
        raise _refused(table, column, value, "an int")
    if column in ("step", "layer") and not (isinstance(value, int | float) and value >= 0):
        raise _refused(table, column, value, "an int >= 0")
    return value


def _real(table: str, column: str, value: Any) -> float | None:
    if type(value) is not float:
        value = _scalar(value)
        try:
            number = float("" if isinstance(value, str | bytes | bytearray) else value)
        except (TypeError, ValueError):
            raise _refused(table, column, value, "a number or None") from None
        except OverflowError:
            number = math.nan
        if isinstance(value, int) and number != value:
            raise _refused(table, column, value, "a number that float64 represents exactly. Round it, or return a str")
        value = number
    return value if math.isfinite(value) else None


def _scalar(value: Any) -> Any:
    """Return the Python object in an array or a tensor of one value, which has a __len__ too."""
    if getattr(value, "shape", None) != ():
        return value
    kind = getattr(value.dtype, "kind", "f")
    return value.astype(f"{kind}8[s]").item() if kind in "mM" else value.item()  # nanoseconds would become an int


def _is_list(value: Any) -> bool:
    """Return whether a value is a list of values in a definite order: not a str, bytes, a set or a mapping."""
    if isinstance(value, str | bytes | bytearray | memoryview | Set | Mapping):
        return False
    return hasattr(value, "__len__") and getattr(value, "shape", None) != ()


def _refused(table: str, column: str, value: Any, expected: str) -> TableError:
    try:
        shown = f"{value!r:.80}"
    except Exception:  # an int with too many digits, for example
        shown = f"a value of type {type(value).__name__}"
    return TableError(f"table {table!r}, column {column!r} holds {shown}, expected {expected}")


def _declared_array(table: str, column: str, values: Any, arrow_type: pa.DataType) -> pa.Array:
    """Convert a column as the user's task declares it. A matrix may be passed as rows."""
    if not pa.types.is_list(arrow_type):
        return _array(table, column, list(values), arrow_type)
    return pa.array([None if row is None else _entries(table, column, row) for row in values], arrow_type)


def _entries(table: str, column: str, row: Any) -> list[float | None]:
    if not _is_list(row):
        raise _refused(table, column, row, "a list of numbers as declared")
    parts = [part if _is_list(part) else [part] for part in map(_scalar, row)]
    if len({len(part) for part in parts}) > 1:
        raise _refused(table, column, row, "rows of one length")
    return [_real(table, column, entry) for part in parts for entry in part]


def _undeclared_array(table: str, column: str, values: Any) -> pa.Array:
    """Convert a custom column to float64, str or list<float64>: types that every reader can combine."""
    values = [_scalar(value) for value in values]
    not_none = [value for value in values if value is not None]
    if not not_none:
        return pa.nulls(len(values))  # the column gets its type from the other trials of the file
    if all(isinstance(value, str) for value in not_none):
        return _array(table, column, values, pa.string())
    if all(_is_list(value) for value in not_none):
        rows = [None if row is None else [_real(table, column, value) for value in row] for row in values]
        return pa.array(rows, pa.list_(pa.float64()))
    return _array(table, column, list(values), pa.float64())


def _feature_table(columns: dict[str, Any]) -> pa.Table:
    import numpy as np

    missing = {"layer", "kind", "feature"} - columns.keys()
    if missing:
        raise TableError(f"table 'features' is missing columns {', '.join(sorted(missing))}")
    num_rows = len(columns["kind"])
    feature = np.asarray(columns["feature"])
    if feature.ndim != 2 or feature.dtype.kind not in "fiub":
        raise TableError(
            f"table 'features': feature has shape {feature.shape} and type {feature.dtype}, expected one vector of numbers "
            "per row, all of one length"
        )
    if feature.dtype not in (np.float16, np.float32):
        feature = feature.astype(np.float32)
    flat = pa.array(feature.reshape(-1))
    value_field = pa.field("item", flat.type, nullable=False)
    arrays = {
        field.name: _array("features", field.name, columns.get(field.name, [None] * num_rows), field.type)
        for field in FEATURES
        if field.name != "feature"
    }
    vectors = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(value_field, feature.shape[1]))
    return pa.table(arrays | {"feature": vectors})
