"""The view `trials` as an Arrow dataset for DuckDB, which requests the columns of a query: standard columns and parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from depthrate.storage.commits.visible_commits import VisibleCommit, only_trials, visible_mask
from depthrate.storage.files.parquet import DataFile, open_parquet
from depthrate.storage.files.reads_at_exit import until_exit
from depthrate.storage.files.store import Store
from depthrate.storage.query.lazy import lazy
from depthrate.storage.query.scan import BatchScanner
from depthrate.storage.tables.parameters import (
    PARAMETER_TYPES,
    AddedParameters,
    as_type,
    column_of,
    common_type,
    parameter_columns,
)
from depthrate.storage.tables.schema import TRIALS

JUDGEMENT = "judgement"
"""Column for the view `results`, computed when a query reads it."""
_VARIES, _UNKNOWN = object(), object()
"""In place of the value that all trials have: they differ, or the footer does not show it."""


class TrialsTable(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """All or some of the visible trials of some commits. A scan reads only the columns that a query needs."""

    parameters: Mapping[str, str]
    """Column of each parameter in the files -> its column here."""
    tasks: Sequence[str]
    """The trials' tasks."""
    valueless: set[str]
    """Columns of the parameters without any value, which are text here."""
    _parts: Sequence[_Part]
    _added: Sequence[Mapping[str, pa.Array]]
    """For each part, the columns of parameters that its task gained later, with one value."""
    _judge: Callable[[], Mapping[str, str]]

    @classmethod
    def of_sources(
        cls,
        store: Store,
        sources: Sequence[VisibleCommit],
        added: AddedParameters,
        trial_ids: frozenset[str] | None = None,
        judge: Callable[[], Mapping[str, str]] = dict,
    ) -> TrialsTable:
        """Return the table of the visible trials, or of those in `trial_ids`.

        Args:
            judge: Returns trial -> judgement, for scans of this column alone: it reads all training curves.
        Raises:
            OSError, pa.ArrowException: A file has vanished or is corrupt.
        """
        if trial_ids is not None:
            sources = [only_trials(source, trial_ids) for source in sources]
        parts = _parts(store, [source for source in sources if source.trials.num_rows])
        gained = [_added_to(part, added) for part in parts]
        types: dict[str, list[pa.DataType]] = {}
        for part, of_part in zip(parts, gained, strict=True):
            for name, kind in [*part.types.items(), *((name, value.type) for name, value in of_part.items())]:
                types.setdefault(name, []).append(kind)
        columns, taken = dict[str, str](), {JUDGEMENT, *(name.casefold() for name in TRIALS.names)}
        for name in types:
            columns[name] = column_of(name, taken)
            taken.add(name.casefold())
        shown = {columns[name]: common_type(kinds) for name, kinds in types.items()}
        valueless = {column for column, kind in shown.items() if pa.types.is_null(kind)}
        schema = pa.schema(
            [*TRIALS, *(shown | dict.fromkeys(valueless, pa.string())).items(), (JUDGEMENT, pa.string())]
        )
        table = cls([], schema, ds.ParquetFileFormat(), LocalFileSystem())
        table._parts, table._added, table.parameters = parts, gained, columns
        table.tasks = sorted({part.task for part in parts if part.task})
        table.valueless, table._judge = valueless, judge
        return table

    def scanner(self, columns: list[str] | None = None, filter: ds.Expression | None = None, **_: Any) -> BatchScanner:
        """Return a scan of some columns of the rows that pass a filter over these columns."""
        names = self.schema.names if columns is None else columns
        shown = str(filter)  # of at least the names of the columns that it needs
        filtered = [] if filter is None else [n for n in self.schema.names if n in shown and n not in names]

        def batches() -> Iterator[pa.RecordBatch]:
            for part, added in zip(self._parts, self._added, strict=True):
                table = self._rows(part, added, [*names, *filtered])
                yield from (table if filter is None else table.filter(filter).select(names)).to_batches()

        return BatchScanner(pa.schema([self.schema.field(name) for name in names]), until_exit(batches()))

    def _rows(self, part: _Part, added: Mapping[str, pa.Array], columns: Sequence[str]) -> pa.Table:
        """Return some columns of a part, with the types that they have here."""
        in_file = {column: name for name, column in self.parameters.items()}
        names = [in_file.get(column, column) for column in columns]
        rows = part.rows([name for name in names if name in part.types or name in TRIALS.names])
        arrays = []
        for column, name in zip(columns, names, strict=True):
            values = pa.chunked_array([pa.nulls(part.num_rows)])
            if name in rows.column_names:
                values = rows[name]
            elif column == JUDGEMENT:
                trial_ids = part.rows(["trial_id"])["trial_id"].to_pylist()
                values = pa.chunked_array([pa.array(map(self._judgements.get, trial_ids), pa.string())])
            elif name in added:
                values = pa.chunked_array([pa.concat_arrays([added[name]] * part.num_rows)])
            arrays.append(as_type(values, self.schema.field(column).type))
        return pa.Table.from_arrays(arrays, list(columns))

    @lazy
    def _judgements(self) -> Mapping[str, str]:
        return self._judge()

    def varying_parameters(self, columns: Collection[str]) -> list[str]:
        """Return those of some parameters that differ between trials."""
        return [column for name, column in self.parameters.items() if column in columns and self._varies(name)]

    def _varies(self, name: str) -> bool:
        values = set[str]()
        for part, added in zip(self._parts, self._added, strict=True):
            found = part.constant(name) if name in part.types else added[name][0].as_py() if name in added else None
            values.add(repr(found))
            if found is _VARIES or len(values) > 1:
                return True
        return False


def _added_to(part: _Part, added: AddedParameters) -> dict[str, pa.Array]:
    gained = added(part.task, part.version)
    return (
        parameter_columns([{n: v for n, v in gained.items() if column_of(n) not in part.types}], {}) if gained else {}
    )


class _Part:
    """Trials of one version of a task with the same parameters, in one or many files."""

    def __init__(self, task: str, version: int, types: Mapping[str, pa.DataType], files: Sequence[_File]):
        self.task, self.version, self.types, self._files = task, version, types, files
        self.num_rows = sum(file.num_rows for file in files)

    def rows(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of the visible trials."""
        return pa.concat_tables([file.rows(names) for file in self._files])

    def constant(self, name: str) -> object:
        """Return the value of a parameter in all trials, or `_VARIES`."""
        if self._files[0].is_compacted and (value := self._files[0].constant(name)) is not _UNKNOWN:
            return value
        values = self._from_json.get(name) if len(self._files) > 1 else None
        if values is None:
            values = self.rows([name])[name].combine_chunks()
        # any type can be compared with itself, shifted by one
        return values[0].as_py() if values[1:].equals(values[:-1]) else _VARIES

    @lazy
    def _from_json(self) -> Mapping[str, pa.Array]:
        """The parameters as read by Arrow, as far as it can: their JSON is in memory, but not the columns of many files."""
        import pyarrow.json

        content = "\n".join(self.rows(["params"])["params"].to_pylist()).encode()
        # a single block, so that a column has one chunk, with one extra byte, so that no object is cut in two
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(content) + 1)
        try:
            table = pyarrow.json.read_json(pa.BufferReader(content), read_options=options)
        except pa.ArrowException:
            return {}
        return {column_of(name): table[name].chunk(0) for name in table.column_names}


class _File:
    """The visible trials in a file: a commit, or one of a compaction's."""

    def __init__(self, store: Store, source: VisibleCommit, file: DataFile | None = None, start: int = 0):
        self._store, self._source, self._file = store, source, file
        self.is_compacted = file is not None
        self.in_memory = source.all_trials if file is None else source.all_trials.slice(start, file.rows)
        self._mask = visible_mask(source, self.in_memory)
        hidden = 0 if self._mask is None else sum(chunk.false_count for chunk in self._mask.chunks)
        self.num_rows = self.in_memory.num_rows - hidden

    @lazy
    def types(self) -> Mapping[str, pa.DataType]:
        """Column of each parameter -> its type."""
        if self._file is not None:
            return {name: PARAMETER_TYPES.get(kind, pa.string()) for name, kind in self._file.own_columns.items()}
        return {field.name: field.type for field in self.schema if field.name not in TRIALS.names}

    @lazy
    def schema(self) -> pa.Schema:
        """Columns of a commit's file."""
        schema = self._source.schema
        return self._open().schema_arrow.remove_metadata() if schema is None else schema

    def _open(self) -> pq.ParquetFile:
        content = self._source.content
        if self._file is not None:
            return self._compacted
        return open_parquet(self._store.read(self._source.path) if content is None else content)

    @lazy
    def _compacted(self) -> pq.ParquetFile:
        assert self._file is not None
        return open_parquet(self._file.read(self._store))

    @lazy
    def _groups(self) -> list[pq.RowGroupMetaData]:
        metadata = self._compacted.metadata
        return [metadata.row_group(group) for group in range(metadata.num_row_groups)]

    @lazy
    def _index(self) -> Mapping[str, int]:
        """Column -> its number among those of Parquet."""
        schema = self._compacted.metadata.schema
        return {schema.column(number).path: number for number in range(len(schema))}

    def rows(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of the visible trials."""
        is_in_memory = set(names) <= set(self.in_memory.column_names)
        rows = self.in_memory.select(names) if is_in_memory else self._open().read(list(names), use_threads=False)
        return rows if self._mask is None else rows.filter(self._mask)

    def constant(self, name: str) -> object:
        """Return the value of a parameter in all trials, `_VARIES` or `_UNKNOWN`, from the statistics in the footer."""
        values, index = set[object](), self._index.get(name)
        for group in self._groups:
            statistics = None if index is None else group.column(index).statistics
            if statistics is None or not statistics.has_null_count:
                return _UNKNOWN
            if statistics.num_values and not statistics.has_min_max:
                return _UNKNOWN
            values |= {None} if statistics.null_count else set()
            values |= {statistics.min, statistics.max} if statistics.num_values else set()
        if len(values) == 1:
            return values.pop()
        return _VARIES if self._mask is None else _UNKNOWN


def _parts(store: Store, sources: Sequence[VisibleCommit]) -> list[_Part]:
    """Return the parts of some sources: a compacted file each, and the commits of a task with the same columns together."""
    parts, loose = list[_Part](), dict[tuple[Any, ...], list[_File]]()
    for source in sources:
        start = 0
        for file in source.files.get("trials", ()) if source.manifest is not None else ():
            if (of_file := _File(store, source, file, start)).num_rows:
                parts.append(_Part(*_task(of_file), of_file.types, [of_file]))
            start += file.rows
        if source.manifest is None:
            of_commit = _File(store, source)
            loose.setdefault((*_task(of_commit), of_commit.schema), []).append(of_commit)
    return [*parts, *(_Part(task, version, files[0].types, files) for (task, version, _), files in loose.items())]


def _task(file: _File) -> tuple[Any, Any]:
    """Return the task and version of a file's trials."""
    first = file.rows(["task", "task_version"])
    return first["task"][0].as_py(), first["task_version"][0].as_py()
