"""Tables as the bytes of Parquet files, laid out for how they are read; and back, with every checksum verified."""

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
"""Of the footer of a trials file: length and CRC-32 of all that stands before the footer."""
ROWS_PER_GROUP = 8192
"""Of the large files: one trial's rows are read by decoding one such group (64 k rows took five times as long)."""
FEATURES_PER_GROUP = 2**18
"""Numbers in a row group of features at least, unless trial and layer change first where a layer alone is larger."""


@dataclass(frozen=True)
class DataFile:
    """A file as its writer described it."""

    path: str
    size: int
    sha256: str
    rows: int
    own_columns: dict[str, str]
    """Columns beyond the standard ones, with their Arrow types."""

    def to_json(self) -> dict[str, Any]:
        """Return what stands in a commit or a manifest."""
        return asdict(self)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> DataFile:
        """Return the file that a commit or a manifest describes.

        Raises:
            KeyError, TypeError, ValueError: it describes none.
        """
        size, rows = fields["size"] if "size" in fields else fields["bytes"], fields["rows"]
        if not (isinstance(size, int) and isinstance(rows, int)):
            raise ValueError(f"bytes and rows are {size!r:.80} and {rows!r:.80}; they are whole numbers")
        own = {str(column): str(kind) for column, kind in fields["own_columns"].items()}
        return DataFile(str(fields["path"]), size, str(fields["sha256"]), rows, own)

    def has_content(self, content: bytes) -> bool:
        """Whether these are the bytes that were written."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


def write_table(
    store: Store,
    path: str,
    name: str,
    table: pa.Table,
    order: np.ndarray | None = None,
    *,
    own: Mapping[str, str] | None = None,
) -> DataFile:
    """Write a table's rows to a file of their own, durably, in the given order if there is one.

    `own` are the columns beyond the standard ones, with their types.

    Raises:
        OSError: the store refused (a full disk, say); no such file is there then.
    """
    if name in ("trials", "features"):
        ordered = table if order is None else table.take(pa.array(order))
        content = trials_bytes(ordered) if name == "trials" else feature_bytes(ordered)
    else:
        content = table_bytes(table, order)
    store.write(path, content, durable=True)
    return DataFile(path, len(content), hashlib.sha256(content).hexdigest(), table.num_rows, dict(own or {}))


def trials_bytes(table: pa.Table) -> bytes:
    """Return trials as Parquet for reading thousands of such files: no dictionaries and snappy, half the time of zstd.

    A checksum of all pages stands in the footer: who reads a few columns still notices that another is damaged.
    """
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, table.schema, compression="snappy", use_dictionary=False, write_page_checksum=True
    ) as writer:
        writer.write_table(table, row_group_size=ROWS_PER_GROUP)
        pages = sink.getvalue()
        writer.add_key_value_metadata({PAGES_KEY.decode(): f"{len(pages)} {zlib.crc32(pages)}"})
    return sink.getvalue()


def pages_are_sound(content: bytes, metadata: Mapping[bytes, bytes]) -> bool | None:
    """Whether the pages of a file of trials are as written; None for one of an older version, which does not say."""
    noted = metadata.get(PAGES_KEY)
    if noted is None:
        return None
    length, checksum = map(int, noted.split())
    return zlib.crc32(content[:length]) == checksum


def table_bytes(table: pa.Table, order: np.ndarray | None = None) -> bytes:
    """Return metrics, curves or attempts as Parquet; measured numbers hardly repeat, so only text has dictionaries."""
    sink = io.BytesIO()
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", compression_level=1, use_dictionary=texts, write_page_checksum=True
    ) as writer:
        for start in range(0, table.num_rows, ROWS_PER_GROUP):  # one group is copied at a time
            stop = min(start + ROWS_PER_GROUP, table.num_rows)
            rows = table.slice(start, stop - start) if order is None else table.take(pa.array(order[start:stop]))
            writer.write_table(rows)
    return sink.getvalue()


def feature_bytes(table: pa.Table) -> bytes:
    """Return features as Parquet whose row groups end with a layer, so that one layer is read without the others."""
    sink = io.BytesIO()
    with feature_writer(sink, table.schema) as writer:
        for start, stop in row_groups(table):
            writer.write_table(table.slice(start, stop - start))
    return sink.getvalue()


def feature_writer(sink: IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    """Return what writes features, a row group at a time."""
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
    """Yield row ranges that end where trial or layer change and hold enough numbers to be worth a group."""
    width = table.schema.field("feature").type.list_size
    keys = list(zip(table["trial_id"].to_pylist(), table["layer"].to_pylist(), strict=True))
    start = 0
    for row in range(1, len(keys) + 1):
        ends = row == len(keys) or keys[row] != keys[row - 1]
        if ends and (row == len(keys) or (row - start) * width >= FEATURES_PER_GROUP):
            yield start, row
            start = row


def open_parquet(source: bytes | Any) -> pq.ParquetFile:
    """Open a file's bytes, or a file open for reading; a page whose checksum is wrong raises when it is read."""
    if isinstance(source, bytes):
        source = pa.BufferReader(source)
    return pq.ParquetFile(source, page_checksum_verification=True)


def read_parquet(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of a file, or some of their columns (pyarrow.parquet.read_table would import pandas).

    Raises:
        pa.ArrowException, OSError: it is no Parquet, or damaged.
    """
    with open_parquet(content) as parquet:
        # in this thread: most files are small, and threads cost more than they bring
        return parquet.read(columns=None if columns is None else list(columns), use_threads=False)
