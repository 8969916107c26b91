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
"""Footer key of a trials file: length and CRC-32 of everything before the footer."""
FOOTER_KEY = b"depthrate_footer"
"""Footer key of a trials file: CRC-32 of the footer in 8 hex digits, computed with `_NO_CRC` in their place."""
_NO_CRC = b"00000000"
ROWS_PER_GROUP = 8192
"""Of the large files: one trial's rows are read by decoding one such group (64 k rows took five times as long)."""
DECODED_BYTES, DECODED_PER_BYTE = 2**28, 400
"""What a file may become in memory: so much, or so many times its own bytes where that is more."""
SLACK_BYTES = 2**26
"""By which a file may have grown beyond what was written and still be looked into: to say how it is damaged."""
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
    names_all: bool = False
    """Whether `own_columns` has all of them: files of earlier versions do not name columns that were standard then."""

    def to_json(self) -> dict[str, Any]:
        """Return what stands in a commit or a manifest."""
        return asdict(self)

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> DataFile:
        """Return the file that a commit or a manifest describes.

        Raises:
            KeyError, TypeError, ValueError: it describes none.
        """
        size, rows = fields["size"] if "size" in fields else fields["bytes"], fields["rows"]
        if not (isinstance(size, int) and isinstance(rows, int)):
            raise ValueError(f"bytes and rows are {size!r:.80} and {rows!r:.80}; they are whole numbers")
        own = {str(column): str(kind) for column, kind in fields["own_columns"].items()}
        return DataFile(str(fields["path"]), size, str(fields["sha256"]), rows, own, fields.get("names_all") is True)

    def read(self, store: Store) -> bytes:
        """Return its bytes, or those that stand in its place.

        Raises:
            FileNotFoundError: it is gone.
            InvalidFileError: what stands there is no file, or far larger than what was written.
        """
        return store.read(self.path, self.size + SLACK_BYTES)

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
    names_all: bool = True,
) -> DataFile:
    """Write a table's rows to a file of their own, durably, in the given order if there is one.

    `own` are the columns beyond the standard ones, with their types; `names_all` says whether they are all of them.

    Raises:
        OSError: the store refused (a full disk, say); no such file is there then.
    """
    if name in ("trials", "features"):
        ordered = table if order is None else table.take(pa.array(order))
        content = trials_bytes(ordered) if name == "trials" else feature_bytes(ordered)
    else:
        content = table_bytes(table, order)
    store.write(path, content, durable=True)
    digest = hashlib.sha256(content).hexdigest()
    return DataFile(path, len(content), digest, table.num_rows, dict(own or {}), names_all)


def trials_bytes(table: pa.Table) -> bytes:
    """Return trials as Parquet for reading thousands of such files: no dictionaries and snappy, half the time of zstd.

    The footer holds checksums of all pages and of itself: a reader of a few columns detects damage of any other.
    """
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, table.schema, compression="snappy", use_dictionary=False, write_page_checksum=True
    ) as writer:
        writer.write_table(table, row_group_size=ROWS_PER_GROUP)
        pages = sink.getvalue()
        checksums = {PAGES_KEY.decode(): f"{len(pages)} {zlib.crc32(pages)}", FOOTER_KEY.decode(): _NO_CRC.decode()}
        writer.add_key_value_metadata(checksums)
    content = sink.getvalue()
    place = _footer_crc_place(content, len(pages))
    assert place is not None and content[place] == _NO_CRC
    crc = b"%08x" % zlib.crc32(content[len(pages) :])
    return content[: place.start] + crc + content[place.stop :]


def _footer_crc_place(content: bytes, num_page_bytes: int) -> slice | None:
    """Return the bytes of the footer's own checksum, or None for a file of an older version without one."""
    key = content.find(FOOTER_KEY, num_page_bytes)
    start = key + len(FOOTER_KEY) + 2  # Thrift's type and length of the value
    return None if key < 0 else slice(start, start + len(_NO_CRC))


def pages_are_intact(content: bytes, metadata: Mapping[bytes, bytes]) -> bool | None:
    """Whether the pages of a file of trials are as written; None for one of an older version, which does not say."""
    noted = metadata.get(PAGES_KEY)
    if noted is None:
        return None
    length, checksum = map(int, noted.split())
    if zlib.crc32(content[:length]) != checksum:
        return False
    if (place := _footer_crc_place(content, length)) is None:
        return FOOTER_KEY not in metadata
    footer = content[length : place.start] + _NO_CRC + content[place.stop :]
    return content[place] == b"%08x" % zlib.crc32(footer)


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
    """Open a file's bytes, or a file open for reading; a page whose checksum is wrong raises when it is read.

    Raises:
        pa.ArrowException, OSError: it is no Parquet, or its bytes stand for more than memory should hold.
    """
    if not isinstance(source, bytes):
        return pq.ParquetFile(source, page_checksum_verification=True)
    opened = pq.ParquetFile(pa.BufferReader(source), page_checksum_verification=True)
    try:
        _require_bounded(opened, source)
    except BaseException:
        opened.close()
        raise
    return opened


def _require_bounded(parquet: pq.ParquetFile, content: bytes) -> None:
    """Check how much a file becomes in memory, by its footer, and before texts are decoded of which one stands for many.

    Raises:
        pa.ArrowInvalid: too much: it was made to fill memory.
    """
    metadata, allowed = parquet.metadata, DECODED_BYTES + DECODED_PER_BYTE * len(content)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    num_values, encoded = metadata.num_rows * metadata.num_columns, sum(group.total_byte_size for group in groups)
    if any(map(pa.types.is_nested, parquet.schema_arrow.types)):
        num_values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    decoded = 8 * num_values + encoded
    if decoded <= allowed and metadata.num_rows * encoded > DECODED_BYTES and (texts := _texts(parquet)):
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, read_dictionary=texts) as coded:
            decoded += sum(map(_decoded_bytes, coded.read(columns=texts, use_threads=False).columns))
    if decoded > allowed:
        raise pa.ArrowInvalid(
            f"its {len(content)} bytes stand for {decoded:.3g} in memory; at most {allowed:.3g} are read"
        )


def _texts(parquet: pq.ParquetFile) -> list[str]:
    kinds = zip(parquet.schema_arrow.names, parquet.schema_arrow.types, strict=True)
    return [name for name, kind in kinds if pa.types.is_string(kind) or pa.types.is_binary(kind)]


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """Return what a column of text takes written out."""
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
    """Return all rows of a file, or some of their columns (pyarrow.parquet.read_table would import pandas).

    Raises:
        pa.ArrowException, OSError: it is no Parquet, or damaged.
    """
    with open_parquet(content) as parquet:
        # in this thread: most files are small, and threads cost more than they bring
        return parquet.read(columns=None if columns is None else list(columns), use_threads=False)
