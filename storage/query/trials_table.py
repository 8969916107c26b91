"""The view `trials`, read by column, since a query of a large store names few of its columns and parameters."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.commits.source import VisibleCommit, only_trials, visible_mask
from depthrate.storage.files.parquet import DataFile, open_parquet
from depthrate.storage.files.store import Store
from depthrate.storage.tables.parameters import (
    AddedParameters,
    TypedParameters,
    completed_texts,
    join_values,
    parameter_columns,
    parsed_by_arrow,
)
from depthrate.storage.tables.schema import TRIALS, as_trials, empty_trials

KEYS = ("trial_id", "attempt_id", "sweep", "task", "status")
"""Columns of trials that are always read."""


class TrialsTable:
    """All or some of the visible trials of some commits.

    For a compaction, only the columns that a query names are read. Its parameters are read as typed columns if it has them.
    """

    def __init__(
        self,
        store: Store,
        sources: Sequence[VisibleCommit],
        added: AddedParameters,
        trial_ids: frozenset[str] | None = None,
    ):
        """Set the commits. Those whose trials are in memory with all columns are not read again."""
        if trial_ids is not None:
            sources = [only_trials(source, trial_ids) for source in sources]
        loose = [source.trials for source in sources if "params" in source.trials.column_names]
        self._loose, self._added = pa.concat_tables([empty_trials(), *loose]), added
        compacted = [source for source in sources if "params" not in source.trials.column_names]
        self._compacted = [_Compaction(store, source, added) for source in compacted if source.trials.num_rows]

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Parameter -> its column: param_<name> if a standard column or, except for case, another parameter has the name.

        Reading them raises what `read` raises.
        """
        columns, taken = dict[str, str](), {name.casefold() for name in TRIALS.names}  # SQL sees no case
        for name in self._names:
            columns[name] = f"param_{name}" if name.casefold() in taken else name
            taken.add(name.casefold())
        return columns

    def read(self, is_named: Callable[[str], bool]) -> pa.Table:
        """Return the trials with the columns that a query may name.

        Raises:
            OSError, pa.ArrowException: A file has vanished or is corrupt.
        """
        trials = self._rows([name for name in TRIALS.names if name in KEYS or is_named(name)])
        named = [name for name, column in self.parameters.items() if is_named(column)]
        for name, values in self._values(named).items():
            trials = trials.append_column(self.parameters[name], values)
        return trials

    @cached_property
    def tasks(self) -> list[str]:
        """The trials' tasks."""
        return sorted(set(self._rows(["task"])["task"].to_pylist()) - {None})  # unique() would import pyarrow.compute

    def _rows(self, names: Sequence[str]) -> pa.Table:
        return pa.concat_tables([*(part.rows(names) for part in self._compacted), self._loose.select(names)])

    @cached_property
    def _names(self) -> list[str]:
        parts = [*(part.typed.names if part.typed else () for part in self._compacted), self._of_loose or ()]
        return list(self._parsed if self._is_parsed else dict.fromkeys(chain.from_iterable(parts)))

    @cached_property
    def _of_loose(self) -> dict[str, pa.Array] | None:
        return parsed_by_arrow(completed_texts(self._loose, self._added)) if self._loose.num_rows else {}

    @cached_property
    def _is_parsed(self) -> bool:
        """Whether the JSON of all trials is needed, because some trials have no typed parameters."""
        return self._of_loose is None or any(part.typed is None for part in self._compacted)

    @cached_property
    def _parsed(self) -> dict[str, pa.Array]:
        return parameter_columns(completed_texts(self._rows(TRIALS.names), self._added))

    def _values(self, names: Sequence[str]) -> Mapping[str, Any]:
        if not self._is_parsed:
            joined = {name: join_values([*self._typed_values(name)]) for name in names}
            if None not in joined.values():
                return joined
        return {name: self._parsed[name] for name in names}

    def _typed_values(self, name: str) -> Iterator[tuple[int, pa.ChunkedArray | None]]:
        yield from ((part.num_rows, part.values(name)) for part in self._compacted)
        loose = (self._of_loose or {}).get(name)
        yield self._loose.num_rows, None if loose is None else pa.chunked_array([loose])

    @cached_property
    def constant_parameters(self) -> set[str]:
        """Columns of parameters that have the same value in all trials, as far as that is known without reading the trials."""
        parts = [part.typed.constants for part in self._compacted if part.typed is not None]
        if self._of_loose:
            parts.append(TypedParameters.from_columns(self._of_loose).constants)
        if self._is_parsed or not parts:
            return set()
        first, *rest = ({name: json.dumps(value) for name, value in part.items()} for part in parts)
        return {self.parameters[n] for n, value in first.items() if all(part.get(n) == value for part in rest)}

    @cached_property
    def varying_parameters(self) -> set[str]:
        """Columns of parameters that differ between trials, as far as that is known without reading the trials."""
        if self._is_parsed:
            return set()
        whole = [
            part.typed.varying.column_names for part in self._compacted if part.is_whole and part.typed is not None
        ]
        return {self.parameters[name] for names in whole for name in names}


class _Compaction:
    """The visible trials of a compaction."""

    def __init__(self, store: Store, source: VisibleCommit, added: AddedParameters):
        self._store, self._source, self._added = store, source, added
        self.num_rows, self.is_whole = source.trials.num_rows, source.is_fully_visible

    @cached_property
    def _files(self) -> list[pq.ParquetFile]:
        return [open_parquet(_content(self._store, file)) for file in self._source.files.get("trials", ())]

    @cached_property
    def _mask(self) -> pa.Array | None:
        return visible_mask(self._source, self._source.all_trials)

    def _visible(self, tables: Sequence[pa.Table]) -> pa.Table:
        table = pa.concat_tables(tables)
        return table if self._mask is None else table.filter(self._mask)

    def rows(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of the trials."""
        return self._visible([as_trials(file.read(list(names), use_threads=False), names) for file in self._files])

    @cached_property
    def typed(self) -> TypedParameters | None:
        """The parameters, with those that the task gained later, or None if the JSON of the trials must be parsed."""
        if len(self._files) != 1:
            return None
        (file,) = self._files
        typed = TypedParameters.from_metadata(file.metadata.metadata, file.metadata.num_rows)
        if typed is None:
            return None
        first = file.read_row_group(0, ["task", "task_version"], use_threads=False).slice(0, 1).to_pylist()[0]
        added = self._added(first["task"], first["task_version"])
        added = {name: value for name, value in added.items() if name not in typed.names}
        return replace(typed, names=[*typed.names, *added], constants=typed.constants | added)

    @cached_property
    def _constants(self) -> dict[str, pa.Array]:
        return parameter_columns([json.dumps(self.typed.constants)]) if self.typed is not None else {}

    def values(self, name: str) -> pa.ChunkedArray | None:
        """Return the values of a typed parameter, or None if the trials do not have it."""
        if self.typed is None or name not in self.typed.names:
            return None
        if name in self.typed.constants:
            return pa.chunked_array([pa.repeat(self._constants[name][0], self.num_rows)])
        return self._visible([self.typed.varying.select([name])])[name]


def _content(store: Store, file: DataFile) -> bytes:
    content = file.read(store)
    if not file.has_content(content):
        raise OSError(f"{file.path} is corrupt: its sha256 differs")
    return content
