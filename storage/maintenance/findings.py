"""Findings of a verification: faults of files, the trials lost, and the rows that can still be read."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.commits.source import VisibleCommit, first_line
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, open_parquet
from depthrate.storage.files.paths import DATA_TABLES
from depthrate.storage.tables.schema import Columns

ORPHANED_KINDS = ("foreign", "leftover")
"""Kinds of findings for files that no commit names."""
NEWER = "newer"
"""Kind of findings for files that only newer versions of depthrate can read. The files are intact."""


@dataclass(frozen=True)
class Finding:
    """A fault in a store."""

    path: str
    kind: str
    """One of: damaged, missing, wrong schema, two types, incomplete, miscounted, foreign, leftover, newer."""
    what: str
    trial_ids: tuple[str, ...] = ()
    """Trials that are or may be invisible because of it."""

    def __str__(self) -> str:
        lost = f" (trials: {len(self.trial_ids)})" if self.trial_ids else ""
        return f"{self.path}: {self.kind}: {self.what}{lost}"


@dataclass
class Verification:
    """Counts and findings of a verification."""

    num_files: int = 0
    num_bytes: int = 0
    num_trials: int = 0
    newer: set[str] = field(default_factory=set)
    """Columns, as `table.column`, written by newer versions of depthrate."""
    findings: list[Finding] = field(default_factory=list)
    lost: dict[str, set[str]] = field(default_factory=dict)
    """Commit or manifest with a fault -> its trials that cannot be used."""
    sources: dict[str, VisibleCommit] = field(default_factory=dict)
    """The same commits, with the trials that can be read from them."""


def diagnose(
    name: str, content: bytes, file: DataFile, trial_ids: set[str], columns: Columns
) -> tuple[str, str, set[str]]:
    """Return (kind, fault, trials) of a corrupt file."""
    if not content:
        return "damaged", "is empty", trial_ids
    size = "" if len(content) == file.size else f", and it has {len(content)} of {file.size} bytes"
    try:
        with open_parquet(content) as parquet:
            if wrong := wrong_columns(name, parquet.schema_arrow, columns):
                return "wrong schema", wrong, trial_ids
            bad = _bad_groups(parquet)
            if bad and not size:
                fault = f"{len(bad)} of {parquet.num_row_groups} row groups cannot be read"
                column = parquet.schema_arrow.names.index("trial_id")
                ranges = [parquet.metadata.row_group(group).column(column).statistics for group in bad]
                if any(statistics is None or not statistics.has_min_max for statistics in ranges):
                    return "damaged", fault, trial_ids
                return "damaged", fault, {t for t in trial_ids if any(s.min <= t <= s.max for s in ranges)}
    except UNREADABLE_ERRORS as error:
        return "damaged", f"cannot be read ({first_line(error)}){size}", trial_ids
    return "damaged", f"differs from the committed file by its sha256{size}", trial_ids


def wrong_columns(name: str, schema: pa.Schema, columns: Columns) -> str | None:
    """Describe the difference between a file's columns and its table's, or return None. Newer versions may add columns.

    Columns added by newer versions may have any type.
    """
    if name not in columns.schemas:
        return None
    standard_types = {column.name: column.type for column in columns.schemas[name]}
    for column in schema:
        standard = standard_types.get(column.name)
        is_feature = name == "features" and column.name == "feature" and pa.types.is_fixed_size_list(column.type)
        if standard not in (None, column.type) and not is_feature:
            return f"column {column.name!r} is {column.type}, expected {standard}"
    missing = [required for required in ("trial_id", "attempt_id", "step") if required not in schema.names]
    return f"is missing columns {', '.join(missing)}" if missing and name in DATA_TABLES else None


def newer_columns(name: str, schema: pa.Schema, file: DataFile, columns: Columns) -> list[str]:
    """Return columns of a newer version: columns that this version does not have and that no task claimed."""
    known = {*(columns.schemas[name].names if name in columns.schemas else schema.names), *file.own_columns}
    return [column for column in schema.names if column not in known]


def _bad_groups(parquet: pq.ParquetFile) -> list[int]:
    """Return the row groups that cannot be read."""
    bad = []
    for group in range(parquet.num_row_groups):
        try:
            parquet.read_row_group(group)
        except (pa.ArrowException, OSError):
            bad.append(group)
    return bad


def read_intact_rows(content: bytes) -> pa.Table:
    """Read the rows of a corrupt file's intact row groups.

    Raises:
        pa.ArrowException, OSError: No row group can be read.
    """
    with open_parquet(content) as parquet:
        bad = _bad_groups(parquet)
        return parquet.read_row_groups([group for group in range(parquet.num_row_groups) if group not in bad])
