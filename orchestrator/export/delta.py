"""Export a sweep's trials, metrics and curves as Delta tables.

Each table is compared with the visible rows and changed in one commit. Readers never see part of a trial or a trial twice, and
the next export completes an interrupted export.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depthrate.errors import InputError
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.export.exporter import ExportedSweep, Exporter
from depthrate.storage.query.results import Results

if TYPE_CHECKING:
    import duckdb

DELTA_TABLES = ("trials", "metrics", "curves")
BATCH_ROWS = 10_000
"""Maximum number of rows in memory."""
APPLICATION = "depthrate"
"""Application name in the commits. With a number, it prevents two exports of the same table version from both committing.
"""


class TableConflictError(InputError):
    """Another export changed the table at the same time."""


@dataclass(frozen=True)
class TableChange:
    """Number of trials that one export changed in a table."""

    written: int
    removed: int
    """Number of trials removed. A trial rewritten from another attempt also counts as written."""


def _export(sweep: ExportedSweep, place: str | None) -> str:
    from deltalake.exceptions import DeltaError

    folder = f"{str(place).rstrip('/')}/{sweep.name}"
    try:
        changes = write_tables(sweep.results, folder)
    except (DeltaError, TableConflictError, OSError) as error:
        raise UsageError(f"cannot write Delta tables below {folder}: {' '.join(str(error).split())}") from None
    texts = [
        f"{name}: {counted(change.written, 'trial')} written"
        + (f", {change.removed} removed" if change.removed else "")
        for name, change in changes.items()
    ]
    return f"{folder}: {'; '.join(texts)}"


def write_tables(results: Results, url: str) -> dict[str, TableChange]:
    """Update the tables below a URL to the visible rows, and return the change per table.

    Raises:
        ImportError: deltalake is not installed.
        TableConflictError: Another export runs at the same time.
        DeltaError: The location cannot be written, or contains another table.
    """
    return {name: _write_table(results, name, f"{url.rstrip('/')}/{name}") for name in DELTA_TABLES}


def _write_table(results: Results, name: str, url: str) -> TableChange:
    from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
    from deltalake.exceptions import CommitFailedError

    table = DeltaTable(url) if DeltaTable.is_deltatable(url) else None
    is_same_shape = table is not None and _is_same_shape(table, results, name)
    exported = _attempts(table) if is_same_shape else set()
    visible = set(results.sql(f"select distinct trial_id, attempt_id from {name}").fetchall())
    stale, new = exported - visible, visible - exported
    if is_same_shape and not stale and not new:
        return TableChange(0, 0)
    changed = sorted({trial_id for trial_id, _ in stale | new})
    options: dict[str, Any] = {"writer_properties": WriterProperties(max_row_group_size=BATCH_ROWS)}
    if not is_same_shape:  # first version, or the type of a column changed: overwrite
        options |= {"mode": "overwrite", "schema_mode": "overwrite"}
    elif stale:
        options |= {"mode": "overwrite", "schema_mode": "merge", "predicate": _is_one_of(changed)}
    else:
        options |= {"mode": "append", "schema_mode": "merge"}
    version = -1 if table is None else table.version()
    commit = CommitProperties(app_transactions=[Transaction(APPLICATION, version + 1)], max_commit_retries=0)

    def write(rows: duckdb.DuckDBPyRelation) -> None:
        batches = rows.to_arrow_reader(BATCH_ROWS)
        write_deltalake(url if table is None else table, batches, commit_properties=commit, **options)

    try:
        results.stream(f"select * from {name}{f' where {_is_one_of(changed)}' if is_same_shape else ''}", write)
    except CommitFailedError as error:
        raise TableConflictError(f"another export changed {url} at the same time ({error}). Export again.") from None
    return TableChange(len({trial_id for trial_id, _ in new}), len({trial_id for trial_id, _ in stale}))


def _is_same_shape(table: Any, results: Results, name: str) -> bool:
    """Return whether common columns have equal types. Otherwise appended rows would be cast, such as 2.5 to 2."""
    exported = table.to_pyarrow_dataset().schema
    current = results.sql(f"select * from {name} limit 0").to_arrow_reader(1).schema
    shared = set(exported.names) & set(current.names)
    return all(_type_name(exported.field(column).type) == _type_name(current.field(column).type) for column in shared)


def _type_name(arrow_type: Any) -> str:
    """Return a type's name without the library-specific names of list values and UTC."""
    return re.sub(r"<\w+: |, tz=[^]]+", "<", str(arrow_type))


def _attempts(table: Any) -> set[tuple[str, str]]:
    """Return a table's pairs of trial and attempt."""
    pairs = set()
    for batch in table.to_pyarrow_dataset().to_batches(columns=["trial_id", "attempt_id"]):
        pairs |= set(zip(batch["trial_id"].to_pylist(), batch["attempt_id"].to_pylist(), strict=True))
    return pairs


def _is_one_of(trial_ids: list[str]) -> str:
    """Return the SQL condition for DuckDB and Delta. Trial ids are hexadecimal, so quoting is safe."""
    return f"trial_id in ({', '.join(map(repr, trial_ids))})"


DELTA = Exporter(
    name="delta",
    doc="Write Delta tables (trials, metrics, curves) to a folder or URL.",
    export=_export,
    library="the deltalake library",
    install="pip install 'depthrate[delta]'",
)
