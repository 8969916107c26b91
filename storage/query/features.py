"""Features of one layer from a file of many layers. Only the row groups that contain the layer are read."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.commits.visible_commits import VisibleCommit
from depthrate.storage.files.parquet import DataFile, open_parquet
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import row_keys

if TYPE_CHECKING:
    import numpy as np

FOOTER_BYTES = 2**16
"""Bytes fetched first, from the end of a file: the footer of about a hundred row groups."""


def read_layer(
    store: Store, file: DataFile, layer: int, attempts: Mapping[str, str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (trial, labels, features) of one layer for some trials.

    Args:
        attempts: Trial -> its attempt.
    """
    with _Ranges(store, file.path, file.size) as source, open_parquet(source) as parquet:
        metadata = parquet.metadata
        names = [metadata.row_group(0).column(i).path_in_schema for i in range(metadata.num_columns)]
        wanted: list[tuple[int, int | str]] = [(names.index("layer"), layer)]
        wanted += [(names.index("trial_id"), trial_id) for trial_id in attempts if len(attempts) < 2]

        def may_hold(group: int) -> bool:
            ranges = [(metadata.row_group(group).column(column).statistics, value) for column, value in wanted]
            return all(not s or not s.has_min_max or s.min <= value <= s.max for s, value in ranges)

        for group in filter(may_hold, range(metadata.num_row_groups)):
            source.prefetch(metadata.row_group(group))
            table = parquet.read_row_group(group, columns=["trial_id", "attempt_id", "layer", "label", "feature"])
            yield from _trials_of_layer(table, layer, attempts)


class _Ranges(io.RawIOBase):
    """A seekable file of the store. Its end is fetched first, then prefetched ranges, and other ranges on demand."""

    def __init__(self, store: Store, path: str, size: int):
        super().__init__()
        self._store, self._path, self._size, self._position = store, path, size, 0
        start = max(0, size - FOOTER_BYTES)
        self._end = (start, store.read_range(path, start, size))
        self._prefetched = (0, b"")

    def prefetch(self, group: pq.RowGroupMetaData) -> None:
        """Fetch a row group in one request, unless the end contains it."""
        columns = [group.column(index) for index in range(group.num_columns)]
        starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        start = min(starts)
        stop = max(first + column.total_compressed_size for first, column in zip(starts, columns, strict=True))
        if start < self._end[0]:
            self._prefetched = (start, self._store.read_range(self._path, start, stop))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, count: int = -1) -> bytes:
        stop = self._size if count < 0 else min(self._size, self._position + count)
        start, self._position = self._position, max(stop, self._position)
        for first, content in (self._prefetched, self._end):
            if first <= start and stop <= first + len(content):
                return content[start - first : stop - first]
        return self._store.read_range(self._path, start, stop) if start < stop else b""


def _trials_of_layer(
    table: pa.Table, layer: int, attempt_of: Mapping[str, str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    import numpy as np  # imported here, since most queries read no features

    trials, attempts = np.array(table["trial_id"].to_pylist()), np.array(table["attempt_id"].to_pylist())
    rows = table["layer"].to_numpy() == layer
    feature = table["feature"].combine_chunks()
    features = feature.flatten().to_numpy(zero_copy_only=False).reshape(len(feature), -1)
    labels = table["label"].to_numpy()
    for trial in dict.fromkeys(trials[rows].tolist()):
        if trial in attempt_of and (selected := rows & (trials == trial) & (attempts == attempt_of[trial])).any():
            yield str(trial), labels[selected], features[selected]


def iter_layer(
    store: Store, sources: Iterable[VisibleCommit], layer: int, trial_ids: Set[str] | None = None
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (trial, labels [N], features [N, d]) of one layer, of all visible trials or of some. Reads only that layer."""
    for source in sources:
        attempts = {
            trial: attempt for trial, attempt in row_keys(source.trials) if trial_ids is None or trial in trial_ids
        }
        for file in source.files.get("features", ()):
            yield from read_layer(store, file, layer, attempts)
