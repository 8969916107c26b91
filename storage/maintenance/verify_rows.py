"""Verify the rows of committed files: what they repeat agrees, and every column has its type, even if the digests are right."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, open_parquet
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.tables.parameters import as_type, common_type, parameter_columns, type_name
from depthrate.storage.tables.schema import TRIALS, Columns, row_keys

FaultOf = Callable[[str, Mapping[str, Any]], str | None]
"""Function: table (trials, fits), one of its rows -> a fault that needs knowledge of tasks to be seen, or None."""
_REQUIRED = {
    "trials": ("trial_id", "sweep", "task", "attempt_id", "status", "committed_at", "params"),
    "metrics": ("trial_id", "attempt_id", "step", "layer"),
    "curves": ("trial_id", "attempt_id", "step"),
    "features": ("trial_id", "attempt_id", "step", "layer"),
}
"""Table -> columns in which every row has a value."""


class CommittedRows:
    """Checks of the files of one commit or compaction. Its trials come first, since the rows of other tables name them."""

    def __init__(self, path: str, claimed: Mapping[str, Mapping[str, str]], columns: Columns | None, fault_of: FaultOf):
        """Prepare for the commit at `path`.

        Args:
            claimed: Table -> custom columns of the store, with their types.
            columns: The measured columns of every file, if they are known.
        """
        self._sweep, self._claimed, self._columns, self._fault_of = sweep_of_path(path), claimed, columns, fault_of
        self._keys: set[tuple[str, str]] = set()

    def fault(self, table: str, content: bytes, file: DataFile | None) -> str | None:
        """Return the first fault of the rows of a file, or None. Columns that newer versions added are none.

        Args:
            file: Its entry. None for the trials of a commit that is not compacted.
        """
        if table not in _REQUIRED:
            return None  # attempts, whose records decide nothing
        try:
            with open_parquet(content) as parquet:
                return next(self._faults(table, parquet, file), None)
        except UNREADABLE_ERRORS as error:
            return f"cannot be read ({first_line(error)})"

    def _faults(self, table: str, parquet: pq.ParquetFile, file: DataFile | None) -> Iterator[str]:
        if file is not None and parquet.metadata.num_rows != file.rows:
            yield f"has {parquet.metadata.num_rows} rows and was committed with {file.rows}"
        own, types = {} if file is None else file.own_columns, {f.name: f.type for f in parquet.schema_arrow}
        always, claimed = Columns().schemas[table].names, self._claimed.get(table, {})
        for column in (self._columns or Columns()).schemas[table]:
            kind = types.get(column.name)
            if column.name in always if kind is None else not _is_kind(kind, column.type):
                yield f"column {column.name!r} holds {kind or 'nothing'}, expected {column.type}"
        for name, stored in (*claimed.items(), *own.items()):
            kind = types.get(name)
            if name in own if kind is None else stored.replace("element:", "item:") not in _names(kind):
                yield f"column {name!r} holds {kind or 'nothing'}, expected {stored:.80}"
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, use_threads=False)
            for name in _REQUIRED[table]:
                if rows[name].null_count:
                    yield f"has a row without {name}"
                elif name in ("step", "layer") and rows.num_rows and pc.min(rows[name]).as_py() < 0:
                    yield f"has a row with a negative {name}"
            if table == "trials":
                yield from self._trial_faults(rows, is_merged=file is not None)
            elif unknown := set(row_keys(rows)) - self._keys:
                yield f"has rows of trial {min(unknown)[0]!r:.80}, which was not committed with it"

    def _trial_faults(self, rows: pa.Table, *, is_merged: bool) -> Iterator[str]:
        """Yield the trials that occur twice, or whose columns contradict one another, the parameters or the path."""
        params = [read_object(text.encode()) for text in rows["params"].to_pylist()]
        for name, expected in parameter_columns(params, {}).items():
            if name not in rows.column_names or not _agrees(rows[name], expected, is_merged=is_merged):
                yield f"column {name!r} differs from the parameters in params"
        tasks = set(zip(rows["task"].to_pylist(), rows["task_version"].to_pylist(), strict=True))
        if len(tasks) > 1:
            yield f"holds trials of several tasks or versions: {sorted(tasks)}"
        for row, values in zip(rows.select(TRIALS.names).to_pylist(), params, strict=True):
            key = row["trial_id"], row["attempt_id"]
            if key in self._keys:
                yield f"holds trial {key[0]!r:.80} twice"
            self._keys.add(key)
            if row["sweep"] != self._sweep:
                yield f"trial {key[0]!r:.80} names the sweep {row['sweep']!r:.80}"
            if (fault := self._fault_of("trials", row | {"params": values})) is not None:
                yield f"trial {key[0]!r:.80} {fault}"


def _is_kind(kind: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a column of a file has this type. Features are of fixed size and may be half floats."""
    if pa.types.is_fixed_size_list(kind):
        return pa.types.is_list(expected) and kind.value_type in (pa.float16(), pa.float32())
    return bool(_with_items(kind).equals(_with_items(expected)))


def _names(kind: pa.DataType) -> tuple[str, str]:
    return type_name(kind), str(_with_items(kind))


def _with_items(kind: pa.DataType) -> pa.DataType:
    """Return a type whose lists name their values `item`. Versions of Arrow name them `element` or `item`."""
    return pa.list_(_with_items(kind.value_type)) if pa.types.is_list(kind) else kind


def _agrees(column: pa.ChunkedArray, expected: pa.Array, *, is_merged: bool) -> bool:
    """Return whether a parameter's column holds these values. In merged files it may have the common type of several."""
    is_free = is_merged or pa.types.is_null(expected.type)
    if not _is_kind(column.type, common_type([expected.type, column.type]) if is_free else expected.type):
        return False
    return bool(as_type(pa.chunked_array([expected]), column.type).equals(column))
