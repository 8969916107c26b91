"""Delta logs beside the committed files, so that Polars, DuckDB and deltalake read a table by its URL, without depthrate.

`<table>/_delta_log/<version>.json` names the files of one table whose rows are the committed rows as of the last compaction.
Each version is written once, only if it does not exist. The files are the store's own, nothing is copied. A file with visible
and other rows (removed, or superseded by another code version) cannot be named, since a Delta log selects whole files.
A compaction therefore writes the other rows to files of their own (`storage.maintenance.merge`).
"""

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.paths import (
    DATA_TABLES,
    delta_log_folder,
    delta_log_path,
    is_table_path,
    sweep_of_path,
)
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import Finding
from depthrate.storage.maintenance.merge import visible_files

DELTA_TABLES = ("trials", *DATA_TABLES)
MAX_TRIES = 5
"""Maximum number of snapshots taken while other compactions write versions."""
OMITTED = "depthrate.omitted"
"""Key of the columns that have two types, or two spellings, in different files. Delta tables cannot have them."""
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_ADD = {"path", "size", "stats", "partitionValues", "modificationTime", "dataChange"}
"""Keys of a file that a version adds. With others, for example deletionVector, it would have other rows."""
_VERSION = re.compile(r"\d{20}\.json")
_PRIMITIVE = {
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "bool": "boolean",
    "int32": "integer",
    "int64": "long",
    "float": "float",
    "double": "double",
    "timestamp[us, tz=UTC]": "timestamp",
}
"""Arrow type -> type of a Delta table. A column of another type is not in the table."""


@dataclass
class _Log:
    """The state after all versions of a table's log."""

    version: int = -1
    """Number of the last version, or -1 for no log."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Store path of each file that it names -> bytes."""
    metadata: dict[str, Any] = field(default_factory=dict)

    def apply(self, table: str, content: bytes) -> None:
        """Add the next version, which must be one that `_write_version` could have written.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: It is not.
        """
        for action in map(read_object, content.splitlines()):
            ((kind, entry),) = action.items()
            if kind == "add":
                path = f"{table}/{unquote(entry['path'])}"
                if entry.keys() != _ADD or not is_table_path(path, table, sweep_of_path(path)):
                    raise ValueError(f"another program added {path!r:.80}")
                self.sizes[path] = entry["size"]
            elif kind == "remove":
                self.sizes.pop(f"{table}/{unquote(entry['path'])}", None)
            elif kind == "metaData" and _metadata(entry, (), 0) == entry:
                self.metadata = entry
            elif (kind, entry) != ("protocol", _PROTOCOL):
                raise ValueError(f"its {kind!r:.80} has another form")
        if not self.metadata:
            raise ValueError("it has no metaData")
        self.version += 1


def has_delta_logs(store: Store) -> bool:
    """Return whether a compaction has written Delta logs to the store. Every later compaction then updates them."""
    return any(store.list(delta_log_folder(table)) for table in DELTA_TABLES)


def update_delta_logs(store: Store, ignore: Iterable[str], cache: SnapshotCache) -> bool:
    """Bring the logs up to the committed rows. Return whether they are, or False if other processes prevented it.

    Args:
        ignore: Paths of corrupt files, whose commits are left out.

    Raises:
        CorruptFileError: A version of a log cannot be read.
    """
    for _ in range(MAX_TRIES):
        # before the snapshot: versions are refused if stale
        logs = {table: _read_log(store, table) for table in DELTA_TABLES}
        snapshot = take_snapshot(store, ignore=ignore, cache=cache)
        named: dict[str, list[DataFile]] = {table: [] for table in DELTA_TABLES}
        for source in snapshot.sources:
            if (files := visible_files(source)) is None:
                return False
            for table in DELTA_TABLES:
                named[table] += files.get(table, [])
            if source.manifest is None:
                size = snapshot.listing[source.path]
                named["trials"].append(DataFile(source.path, size, "", source.all_trials.num_rows, {}))
        if all(_write_version(store, table, logs[table], named[table]) for table in DELTA_TABLES):
            return True
    return False


def named_by_delta_logs(store: Store) -> set[str]:
    """Return the files that the logs name, which must not be deleted.

    Raises:
        CorruptFileError: A version of a log cannot be read.
    """
    return {path for table in DELTA_TABLES for path in _read_log(store, table).sizes}


def check_delta_logs(store: Store) -> Iterator[Finding]:
    """Yield a finding for each log that cannot be read or names other files than the table has, and for foreign files."""
    for table in DELTA_TABLES:
        files = store.list(table)
        for path in files:
            if path.startswith(delta_log_folder(table)) and not _VERSION.fullmatch(path.rpartition("/")[2]):
                yield Finding(path, "foreign", "was not written by depthrate")
        log = _parse_log(store, table)
        if isinstance(log, Finding):
            yield log
        elif wrong := sorted(path for path, size in log.sizes.items() if files.get(path) != size):
            path = delta_log_path(table, log.version)
            what = f"its log names {wrong[0]}, which is missing or of another size. Run depthrate compact"
            yield Finding(path, "damaged", what)


def _read_log(store: Store, table: str) -> _Log:
    if isinstance(log := _parse_log(store, table), Finding):
        raise CorruptFileError(f"{log.path} {log.what}")
    return log


def _parse_log(store: Store, table: str) -> _Log | Finding:
    """Return the state after the versions of a table's log, or the finding of a version that depthrate has not written."""
    log = _Log()
    listed = sorted(path for path in store.list(delta_log_folder(table)) if _VERSION.fullmatch(path.rpartition("/")[2]))
    for path, content in store.read_many(listed):
        try:
            if isinstance(content, OSError):
                raise content
            if path != delta_log_path(table, log.version + 1):
                raise ValueError(f"version {log.version + 1} is missing before it")
            log.apply(table, content)
        except (InvalidFileError, ValueError, KeyError, TypeError, AttributeError) as error:
            fix = f"Move {delta_log_folder(table)} away, then run depthrate compact --delta"
            return Finding(path, "damaged", f"is not a version of a Delta log ({str(error)[:200]}). {fix}.")
    return log


def _write_version(store: Store, table: str, log: _Log, files: Iterable[DataFile]) -> bool:
    """Write the next version of a table's log, if files or columns changed. Return False if it already exists."""
    named = {file.path: file for file in files}
    new = [file for path, file in named.items() if path not in log.sizes]
    now_ms = int(time.time() * 1000)
    schemas = []
    for file in new:
        try:
            with store.open(file.path) as source:
                schemas.append(pq.read_schema(source))
        except pa.ArrowException as error:
            raise CorruptFileError(
                f"{file.path} cannot be read ({first_line(error)}). See: depthrate verify."
            ) from None
    metadata = _metadata(log.metadata, schemas, now_ms)
    removed = [
        {"remove": {"path": _relative(path), "deletionTimestamp": now_ms, "dataChange": True}}
        for path in sorted(log.sizes.keys() - named.keys())
    ]
    if not new and not removed:
        return True
    actions: list[Mapping[str, Any]] = []
    if log.version < 0:
        actions.append({"protocol": _PROTOCOL})
    if metadata != log.metadata:
        actions.append({"metaData": metadata})
    stats = {file.path: json.dumps({"numRecords": file.rows}) for file in new}
    shared = {"partitionValues": {}, "modificationTime": now_ms, "dataChange": True}
    added = [{"add": {"path": _relative(f.path), "size": f.size, "stats": stats[f.path], **shared}} for f in new]
    content = "\n".join(json.dumps(action) for action in (*actions, *removed, *added))
    return store.create(delta_log_path(table, log.version + 1), content.encode())


def _relative(path: str) -> str:
    return quote(path.partition("/")[2], safe="/=")


def _metadata(previous: Mapping[str, Any], schemas: Iterable[pa.Schema], now_ms: int) -> dict[str, Any]:
    """Return a table's metadata with the columns of more files. Columns of all files stay, in their order."""
    configuration = previous.get("configuration", {})
    columns = {
        field["name"]: field for field in read_object(previous.get("schemaString", '{"fields": []}').encode())["fields"]
    }
    omitted = set(json.loads(configuration.get(OMITTED, "[]")))
    names = {name.casefold(): name for name in columns}
    for schema in schemas:
        for arrow_field in schema:
            if (kind := _delta_type(arrow_field.type)) is None:
                continue
            column = {"name": arrow_field.name, "type": kind, "nullable": True, "metadata": {}}
            same = names.setdefault(arrow_field.name.casefold(), arrow_field.name)
            if columns.setdefault(same, column) != column:
                omitted |= {same, arrow_field.name}
    fields = [column for name, column in columns.items() if name not in omitted]
    return {
        "id": previous.get("id", str(uuid.uuid4())),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {OMITTED: json.dumps(sorted(omitted))} if omitted else {},
        "createdTime": previous.get("createdTime", now_ms),
    }


def _delta_type(kind: pa.DataType) -> Any:
    """Return the type of a column in a Delta table, or None if it has no such type."""
    if pa.types.is_dictionary(kind):
        return _delta_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _delta_type(kind.value_type)
        return element and {"type": "array", "elementType": element, "containsNull": True}
    return _PRIMITIVE.get(str(kind))
