"""Write tables as Parquet files, laid out for their readers, and read them with every checksum verified."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.files.store import Store

if TYPE_CHECKING:
    import numpy as np

PAGES_KEY = b"depthrate_pages"
"""Footer key of a trials file: length and CRC-32 of everything before the footer."""
FOOTER_KEY = b"depthrate_footer"
"""Footer key of a trials file: CRC-32 of the footer in 8 hex digits, computed with `_NO_CRC` in their place."""
_NO_CRC = b"00000000"
ROWS_PER_GROUP = 8192
"""Rows per row group of large files. Reading one trial decodes one group (with 64 k rows it took five times as long)."""
DECODED_BYTES = 2**28
"""Decoded size in bytes that any file may have in memory."""
DECODED_PER_BYTE = 400
"""Maximum decoded size of a large file in memory, as a multiple of its own size. Applies if it exceeds `DECODED_BYTES`."""
UNREADABLE_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""Exceptions that reading a corrupt or foreign file can raise."""
SLACK_BYTES = 2**26
"""Bytes by which a file may exceed its committed size and still be read, to report how it is corrupt."""
FEATURES_PER_GROUP = 2**18
"""Minimum numbers per row group of features. A group is larger if a single layer is larger."""


@dataclass(frozen=True)
class DataFile:
    """Description of a file by its writer."""

    path: str
    size: int
    sha256: str
    rows: int
    own_columns: dict[str, str]
    """Columns beyond the standard ones, with their Arrow types."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a commit or a manifest."""
        return asdict(self)

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> DataFile:
        """Parse the entry of a commit or a manifest.

        Raises:
            KeyError, TypeError, ValueError: The entry is invalid.
        """
        size, rows = fields["size"], fields["rows"]
        if not (isinstance(size, int) and isinstance(rows, int)):
            raise ValueError(f"size and rows are {size!r:.80} and {rows!r:.80}, expected integers")
        custom = {str(column): str(kind) for column, kind in fields["own_columns"].items()}
        return DataFile(str(fields["path"]), size, str(fields["sha256"]), rows, custom)

    def read(self, store: Store) -> bytes:
        """Return the current content of the file.

        Raises:
            FileNotFoundError: The file does not exist.
            InvalidFileError: It is not a regular file, or is far larger than the committed file.
        """
        return store.read(self.path, self.size + SLACK_BYTES)

    def has_content(self, content: bytes) -> bool:
        """Return whether `content` equals the bytes that were written."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


def write_table(
    store: Store,
    path: str,
    name: str,
    table: pa.Table,
    order: np.ndarray | None = None,
    *,
    custom: Mapping[str, str] | None = None,
    is_commit: bool = False,
) -> DataFile:
    """Write a table's rows to a new file, durably.

    Args:
        order: Order of the rows, if not the table's.
        custom: Columns beyond the standard ones, with their types.
        is_commit: Whether these trials are a commit, a file of few rows.

    Raises:
        OSError: The write failed (a full disk, for example). Then the file does not exist.
    """
    if name in ("trials", "features"):
        ordered = table if order is None else table.take(pa.array(order))
        content = trials_bytes(ordered, is_commit=is_commit) if name == "trials" else feature_bytes(ordered)
    else:
        content = table_bytes(table, order)
    store.write(path, content, durable=True)
    digest = hashlib.sha256(content).hexdigest()
    return DataFile(path, len(content), digest, table.num_rows, dict(custom or {}))


def trials_bytes(table: pa.Table, *, is_commit: bool = False) -> bytes:
    """Encode trials as Parquet for reading thousands of files: no dictionaries, and snappy, which takes half the time of zstd.

    A commit has many columns and few rows, so it has neither statistics nor Arrow's copy of the schema: these would be most of
    the file. The footer holds checksums of all pages and of itself, so a reader of a few columns detects
    corruption in the other columns too.
    """
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="snappy",
        use_dictionary=False,
        write_statistics=not is_commit,
        store_schema=not is_commit,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=ROWS_PER_GROUP)
        pages = sink.getvalue()
        checksums = {PAGES_KEY.decode(): f"{len(pages)} {zlib.crc32(pages)}", FOOTER_KEY.decode(): _NO_CRC.decode()}
        own = table.schema.metadata or {} if is_commit else {}  # else part of Arrow's copy of the schema
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in own.items()} | checksums)
    content = sink.getvalue()
    crc_slice = _footer_crc_slice(content, len(pages))
    assert content[crc_slice] == _NO_CRC
    crc = b"%08x" % zlib.crc32(content[len(pages) :])
    return content[: crc_slice.start] + crc + content[crc_slice.stop :]


def _footer_crc_slice(content: bytes, num_page_bytes: int) -> slice:
    """Return the position of the footer's own checksum."""
    start = content.find(FOOTER_KEY, num_page_bytes) + len(FOOTER_KEY) + 2  # Thrift's type and length of the value
    return slice(start, start + len(_NO_CRC))


def is_intact(content: bytes, metadata: Mapping[bytes, bytes]) -> bool:
    """Return whether the pages and the footer of a trials file are unchanged."""
    length, checksum = map(int, metadata.get(PAGES_KEY, b"0 1").split())
    if zlib.crc32(content[:length]) != checksum:
        return False
    crc_slice = _footer_crc_slice(content, length)
    footer = content[length : crc_slice.start] + _NO_CRC + content[crc_slice.stop :]
    return content[crc_slice] == b"%08x" % zlib.crc32(footer)


def table_bytes(table: pa.Table, order: np.ndarray | None = None) -> bytes:
    """Encode metrics, curves or attempts as Parquet. Numbers hardly repeat, so only strings have dictionaries."""
    sink = io.BytesIO()
    strings = [field.name for field in table.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", compression_level=1, use_dictionary=strings, write_page_checksum=True
    ) as writer:
        for start in range(0, table.num_rows, ROWS_PER_GROUP):  # one group is copied at a time
            stop = min(start + ROWS_PER_GROUP, table.num_rows)
            rows = table.slice(start, stop - start) if order is None else table.take(pa.array(order[start:stop]))
            writer.write_table(rows)
    return sink.getvalue()


def feature_bytes(table: pa.Table) -> bytes:
    """Encode features as Parquet. Row groups end with a layer, so that one layer can be read without the others."""
    sink = io.BytesIO()
    with feature_writer(sink, table.schema) as writer:
        for start, stop in row_groups(table):
            writer.write_table(table.slice(start, stop - start))
    return sink.getvalue()


def feature_writer(sink: IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    """Open a writer of features, which takes one row group at a time."""
    is_float32 = schema.field("feature").type.value_type == pa.float32()
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in schema.names if name != "feature"],
        use_byte_stream_split=["feature.list.element"] if is_float32 else [],
        write_page_checksum=True,
    )


def row_groups(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield row ranges that end where the trial or the layer changes and hold enough numbers for a row group."""
    width = table.schema.field("feature").type.list_size
    keys = list(zip(table["trial_id"].to_pylist(), table["layer"].to_pylist(), strict=True))
    start = 0
    for row in range(1, len(keys) + 1):
        ends = row == len(keys) or keys[row] != keys[row - 1]
        if ends and (row == len(keys) or (row - start) * width >= FEATURES_PER_GROUP):
            yield start, row
            start = row


def open_parquet(source: bytes | Any) -> pq.ParquetFile:
    """Open a file's bytes, or an open file. Reading a page with a wrong checksum raises.

    Raises:
        pa.ArrowException, OSError: The content is not Parquet, or its decoded size exceeds the limit.
    """
    if not isinstance(source, bytes):
        return pq.ParquetFile(source, page_checksum_verification=True)
    parquet = pq.ParquetFile(pa.BufferReader(source), page_checksum_verification=True)
    try:
        _require_bounded(parquet, source)
    except BaseException:
        parquet.close()
        raise
    return parquet


def _require_bounded(parquet: pq.ParquetFile, content: bytes) -> None:
    """Check a file's decoded size from its footer, before decoding strings that may each be repeated many times."""
    metadata, allowed = parquet.metadata, DECODED_BYTES + DECODED_PER_BYTE * len(content)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    num_values, encoded = metadata.num_rows * metadata.num_columns, sum(group.total_byte_size for group in groups)
    if any(metadata.schema.column(index).max_repetition_level for index in range(metadata.num_columns)):
        num_values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    decoded = 8 * num_values + encoded
    if decoded <= allowed and metadata.num_rows * encoded > DECODED_BYTES and (strings := _string_columns(parquet)):
        with pq.ParquetFile(
            pa.BufferReader(content), page_checksum_verification=True, read_dictionary=strings
        ) as coded:
            decoded += sum(map(_decoded_bytes, coded.read(columns=strings, use_threads=False).columns))
    if decoded > allowed:
        raise pa.ArrowInvalid(
            f"its {len(content)} bytes decode to {decoded:.3g} in memory, more than the limit of {allowed:.3g}"
        )


def _string_columns(parquet: pq.ParquetFile) -> list[str]:
    """Return the columns whose strings may be repeated many times: the columns with a dictionary."""
    groups = [parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups)]
    coded = {
        column.path_in_schema.partition(".")[0]
        for group in groups
        for column in (group.column(index) for index in range(group.num_columns))
        if column.has_dictionary_page
    }
    kinds = zip(parquet.schema_arrow.names, parquet.schema_arrow.types, strict=True)
    return [name for name, kind in kinds if name in coded and (pa.types.is_string(kind) or pa.types.is_binary(kind))]


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a string column after decoding."""
    import pyarrow.compute as pc

    total = 0
    for chunk in column.chunks:
        if not pa.types.is_dictionary(chunk.type):
            total += chunk.nbytes
            continue
        lengths = pc.take(pc.binary_length(chunk.dictionary).cast(pa.int64()), chunk.indices)
        total += pc.sum(lengths).as_py() or 0
    return total


def read_parquet(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all rows of a file, with all or some columns (pyarrow.parquet.read_table would import pandas).

    Raises:
        pa.ArrowException, OSError: The content is not Parquet, or corrupt.
    """
    with open_parquet(content) as parquet:
        # single-threaded: most files are small, so threads would cost more than they save
        return parquet.read(columns=None if columns is None else list(columns), use_threads=False)
