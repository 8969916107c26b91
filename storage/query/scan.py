"""A table's files as one Arrow dataset for DuckDB: with a known schema, and only the files that a filter can match.

Pages are read through Arrow because it verifies their checksums: a flipped bit causes an error, never a wrong number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.reads_at_exit import until_exit
from depthrate.storage.files.store import Store

FETCH_BELOW = 4_000_000
"""Size in bytes below which a remote file is fetched in one request. Many files are fetched in parallel."""
FETCH_BYTES = 64_000_000
"""Maximum bytes of fetched files in memory."""
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


@dataclass(frozen=True)
class BatchScanner:
    """What DuckDB needs of an Arrow scanner. An Arrow scanner of batches would read them all ahead."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches)


def _parts(fragments: Iterable[tuple[ds.Fragment, int]]) -> Iterator[list[ds.Fragment]]:
    """Group fragments, given with their bytes: small files together, each large file alone."""
    part, num_bytes = [], 0
    for fragment, size in fragments:
        part.append(fragment)
        num_bytes += size
        if num_bytes > FETCH_BYTES // 2:
            yield part
            part, num_bytes = [], 0
    if part:
        yield part


class TableDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A table's files, opened when they are scanned.

    DuckDB requests a `scanner` from an Arrow dataset with the columns and the filter of a query. Files without any
    trial that passes the filter are not opened.
    """

    store: Store
    snapshot: Snapshot
    sources: Mapping[str, int]
    """Path -> index of the snapshot's source that the file belongs to."""
    named: Sequence[DataFile]

    @classmethod
    def from_snapshot(
        cls, store: Store, snapshot: Snapshot, table: str, sources: Sequence[int], schema: pa.Schema
    ) -> TableDataset:
        """Return the dataset of a table's files, from the selected sources of a snapshot."""
        dataset = cls([], schema, _FORMAT, LocalFileSystem())
        dataset.store, dataset.snapshot = store, snapshot
        files = {i: snapshot.sources[i].files.get(table, ()) for i in sources}
        dataset.sources = {file.path: i for i, named in files.items() for file in named}
        dataset.named = [file for named in files.values() for file in named]
        return dataset

    def scanner(
        self, columns: list[str] | None = None, filter: ds.Expression | None = None, **options: Any
    ) -> BatchScanner | ds.Scanner:
        """Return a scan of the files that may contain rows that pass the filter.

        Few files are scanned at a time: Arrow reads on until a gigabyte waits to be taken.
        """
        files = self._matching(filter)
        fetched = [file for file in files if self.store.uses_requests and file.size < FETCH_BELOW]
        opened = [(self._fragment(file), file.size) for file in files if file not in fetched]
        # reads ahead one row group (10 MB) of one large file, or several small files
        ahead = FETCH_BYTES // max([FETCH_BELOW, *(file.size for file in files)])
        options |= {"cache_metadata": False, "batch_readahead": 1, "fragment_readahead": max(1, ahead)}

        def batches() -> Iterator[pa.RecordBatch]:
            for fragments in chain(_parts(opened), self._fetch(fetched)):
                dataset = ds.FileSystemDataset(fragments, self.schema, _FORMAT, LocalFileSystem())
                yield from dataset.scanner(columns=columns, filter=filter, **options).to_batches()

        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        if fetched:  # reads ahead, and so in the order of the tables
            return ds.Scanner.from_batches(until_exit(batches()), schema=schema)
        return BatchScanner(schema, until_exit(batches()))

    def _fragment(self, file: DataFile) -> ds.Fragment:
        filesystem = self.store.files.arrow_filesystem()
        return _FORMAT.make_fragment(self.store.require_file(file.path), filesystem, file_size=file.size)

    def _fetch(self, files: Sequence[DataFile]) -> Iterator[list[ds.Fragment]]:
        """Yield the files' contents, as many at a time as memory allows."""

        def contents() -> Iterator[tuple[ds.Fragment, int]]:
            for _, content in self.store.read_many([file.path for file in files]):
                if isinstance(content, OSError):
                    raise content
                yield _FORMAT.make_fragment(pa.BufferReader(content)), len(content)

        return _parts(contents())

    def _matching(self, filter: ds.Expression | None) -> Sequence[DataFile]:
        """Return the files that may contain rows that pass the filter."""
        if filter is None or len(self.named) < 2 or "trial_id" not in str(filter):
            return self.named
        possible = _possible(self.snapshot.sorted_trial_ids, filter, self.schema)
        if possible is None:
            return self.named
        wanted = {self.snapshot.commit_index[trial_id] for trial_id in possible}
        return [file for file in self.named if self.sources[file.path] in wanted]


def _possible(values: list[str], filter: ds.Expression, schema: pa.Schema) -> set[str] | None:
    """Return the trials that the filter does not rule out, or None if it rules out few.

    Arrow itself decides whether a filter contradicts `low <= trial_id <= high`. The ranges are halved until they hold
    one trial each.
    """
    ranges = [(0, len(values))] if values else []
    while ranges and any(stop - start > 1 for start, stop in ranges):
        middles = [(start, (start + stop) // 2, stop) for start, stop in ranges]
        halves = [half for start, middle, stop in middles for half in ((start, middle), (middle, stop))]
        halves = [(start, stop) for start, stop in halves if start < stop]
        ranges = _not_ruled_out(values, halves, filter, schema)
        if len(ranges) > 64:
            return None
    return {values[start] for start, _ in ranges}


def _not_ruled_out(
    values: list[str], ranges: list[tuple[int, int]], filter: ds.Expression, schema: pa.Schema
) -> list[tuple[int, int]]:
    field = ds.field("trial_id")
    fragments = [
        # never opened: Arrow only compares the partition expression with the filter
        _FORMAT.make_fragment(
            f"{start}-{stop}",
            LocalFileSystem(),
            partition_expression=(field >= values[start]) & (field <= values[stop - 1]),
        )
        for start, stop in ranges
    ]
    matching = ds.FileSystemDataset(fragments, schema, _FORMAT, LocalFileSystem()).get_fragments(filter=filter)
    return [(int(start), int(stop)) for start, _, stop in (fragment.path.partition("-") for fragment in matching)]
