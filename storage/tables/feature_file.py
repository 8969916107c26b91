"""Features on their way to the store: a local file that grows row group by row group, so that none of them stays in memory."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import IO

import pyarrow as pa

from depthrate.storage.files.parquet import DataFile, feature_writer, open_parquet, row_groups
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import TableError


class FeatureFile:
    """The features of the trials of one commit, in the order in which they come; it is gone when it is closed."""

    def __init__(self) -> None:
        self._file = _local_file()
        self._schema: pa.Schema | None = None
        self._waiting: pa.Table | None = None
        """Rows of a group that may go on."""
        self.num_rows = 0
        self._left_out: set[str] = set()
        """Trials of which some rows are in the file and shall not stay there."""

    def add(self, table: pa.Table) -> None:
        """Take rows that follow those before them, layer after layer.

        Raises:
            TableError: their vectors have another length or type than those before them.
        """
        if not table.num_rows:
            return
        if self._schema is None:
            self._schema = table.schema
            self._writer = feature_writer(self._file, table.schema)
        elif not self._writer.is_open:  # a commit with these rows was refused, and comes again
            self._open_anew(self._schema)
        if table.schema != self._schema:
            vectors = (schema.field("feature").type for schema in (table.schema, self._schema))
            raise TableError("table 'features' has vectors of {} after {}; give one length and type".format(*vectors))
        self.num_rows += table.num_rows
        rows = table if self._waiting is None else pa.concat_tables([self._waiting, table]).combine_chunks()
        *whole, (start, _) = row_groups(rows)  # what follows may belong to the last one
        for first, stop in whole:
            self._writer.write_table(rows.slice(first, stop - first))
        self._waiting = rows.slice(start)

    def leave_out(self, trial_id: str, num_rows: int) -> None:
        """Leave out what has come of a trial that failed before it was whole; without it there are `num_rows`."""
        if self.num_rows > num_rows:
            self._left_out.add(trial_id)
            self.num_rows = num_rows

    def write(self, store: Store, path: str) -> DataFile:
        """Write what came to the store, durably.

        Raises:
            OSError: the store refused; no such file is there then.
        """
        if self._waiting is not None:
            self._writer.write_table(self._waiting)
            self._waiting = None
        self._writer.close()
        if self._left_out and self._schema is not None:
            self._open_anew(self._schema)
            self._writer.close()
        self._file.flush()
        local = Path(self._file.name)
        with local.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        store.write(path, local, durable=True)
        return DataFile(path, local.stat().st_size, digest, self.num_rows, {})

    def _open_anew(self, schema: pa.Schema) -> None:
        """Go on behind the rows of the file, which is closed and takes no more, without those that are left out."""
        import pyarrow.compute as pc  # 40 ms that who reads commits does not need

        file = _local_file()
        writer, left_out = feature_writer(file, schema), pa.array(sorted(self._left_out), pa.string())
        with open_parquet(self._file) as before:
            for group in range(before.num_row_groups):
                rows = before.read_row_group(group)
                kept = rows.filter(pc.invert(pc.is_in(rows["trial_id"], value_set=left_out)))
                if kept.num_rows:
                    writer.write_table(kept)
        self._file.close()
        self._file, self._writer, self._left_out = file, writer, set()

    def close(self) -> None:
        """Delete the local file."""
        if self._schema is not None:
            self._writer.close()
        self._file.close()


def _local_file() -> IO[bytes]:
    return tempfile.NamedTemporaryFile(prefix="depthrate-features-", suffix=".parquet")
