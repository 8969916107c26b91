"""A buffer for features before their commit: a local file that grows by row groups, so that features do not fill the memory."""

import hashlib
import tempfile
from pathlib import Path
from typing import IO

import pyarrow as pa

from depthrate.storage.files.parquet import DataFile, feature_writer, open_parquet, row_groups
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import TableError


class FeatureFile:
    """The features of the trials of one commit, in order of arrival. The first rows create the file, and closing deletes it."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._waiting: pa.Table | None = None
        """Rows of a group that may be incomplete."""
        self.num_rows = 0
        self._excluded: set[str] = set()
        """Trials with rows in the file that must not be committed."""

    def add(self, table: pa.Table) -> None:
        """Append rows, ordered by layer.

        Raises:
            TableError: Their vectors differ in length or type from the vectors before.
        """
        if not table.num_rows:
            return
        if self._schema is None:
            self._schema, self._file = table.schema, _local_file()
            self._writer = feature_writer(self._file, table.schema)
        elif not self._writer.is_open:  # a commit with these rows was refused and is being repeated
            self._reopen(self._schema)
        if table.schema != self._schema:
            vectors = (schema.field("feature").type for schema in (table.schema, self._schema))
            raise TableError(
                "table 'features' has vectors of {} after {}, expected one length and type".format(*vectors)
            )
        self.num_rows += table.num_rows
        rows = table if self._waiting is None else pa.concat_tables([self._waiting, table]).combine_chunks()
        *complete, (start, _) = row_groups(rows)  # later rows may belong to the last group
        for first, stop in complete:
            self._writer.write_table(rows.slice(first, stop - first))
        self._waiting = rows.slice(start)

    def leave_out(self, trial_id: str, num_rows: int) -> None:
        """Exclude the rows of a trial that failed before it was complete. `num_rows` then omits these rows."""
        if self.num_rows > num_rows:
            self._excluded.add(trial_id)
            self.num_rows = num_rows

    def write(self, store: Store, path: str) -> DataFile:
        """Write the rows to the store, durably. There is at least one.

        Raises:
            OSError: The write failed. Then the file does not exist in the store.
        """
        if self._waiting is not None:
            self._writer.write_table(self._waiting)
            self._waiting = None
        self._writer.close()
        if self._excluded and self._schema is not None:
            self._reopen(self._schema)
            self._writer.close()
        self._file.flush()
        local = Path(self._file.name)
        with local.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        store.write(path, local, durable=True)
        return DataFile(path, local.stat().st_size, digest, self.num_rows, {})

    def _reopen(self, schema: pa.Schema) -> None:
        """Copy the closed file without excluded trials to a new file that accepts more rows."""
        import pyarrow.compute as pc  # 40 ms that readers of commits do not need

        file = _local_file()
        writer, excluded = feature_writer(file, schema), pa.array(sorted(self._excluded), pa.string())
        with open_parquet(self._file) as previous:
            for group in range(previous.num_row_groups):
                rows = previous.read_row_group(group)
                selected = rows.filter(pc.invert(pc.is_in(rows["trial_id"], value_set=excluded)))
                if selected.num_rows:
                    writer.write_table(selected)
        self._file.close()
        self._file, self._writer, self._excluded = file, writer, set()

    def close(self) -> None:
        """Delete the local file."""
        if self._schema is not None:
            self._writer.close()
            self._file.close()


def _local_file() -> IO[bytes]:
    return tempfile.NamedTemporaryFile(prefix="depthrate-features-", suffix=".parquet")
