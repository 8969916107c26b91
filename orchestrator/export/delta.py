"""A sweep's trials, metrics and curves as Delta tables, which other programs read without a word of ours.

Each table is compared with what counts now and changed by one commit, so that a reader never sees a trial half or twice,
and an export that was stopped is completed by the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.export.exporter import ExportedSweep, Exporter
from depthrate.storage.query.results import Results

DELTA_TABLES = ("trials", "metrics", "curves")
BATCH_ROWS = 50_000
"""Rows held in memory at a time."""
APPLICATION = "depthrate"
"""Two exports that began from one version of a table cannot both be committed: commits bear this name and a number."""


class TableConflictError(ValueError):
    """Another export has changed the table meanwhile."""


@dataclass(frozen=True)
class TableChange:
    """What one export did to a table, in trials."""

    written: int
    removed: int
    """Those among them that are written anew, of another attempt, count as written too."""


def _export(sweep: ExportedSweep, place: str | None) -> str:
    from deltalake.exceptions import DeltaError

    folder = f"{str(place).rstrip('/')}/{sweep.name}"
    try:
        changes = write_tables(sweep.results, folder)
    except (DeltaError, TableConflictError, OSError) as error:
        raise UsageError(f"Delta tables below {folder}: {' '.join(str(error).split())}") from None
    texts = [
        f"{name}: {counted(change.written, 'trial')} written"
        + (f", {change.removed} taken out" if change.removed else "")
        for name, change in changes.items()
    ]
    return f"{folder}: {'; '.join(texts)}"


def write_tables(results: Results, url: str) -> dict[str, TableChange]:
    """Make the tables below a URL hold what counts now and nothing else, and return table -> what changed.

    Raises:
        ImportError: deltalake is not installed.
        TableConflictError: another export does the same at this moment.
        DeltaError: the place refuses, or what is there is no table of ours.
    """
    return {name: _write_table(results, name, f"{url.rstrip('/')}/{name}") for name in DELTA_TABLES}


def _write_table(results: Results, name: str, url: str) -> TableChange:
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    table = DeltaTable(url) if DeltaTable.is_deltatable(url) else None
    is_same_shape = table is not None and _is_same_shape(table, results, name)
    theirs = _attempts(table) if is_same_shape else set()
    ours = set(results.sql(f"select distinct trial_id, attempt_id from {name}").fetchall())
    stale, new = theirs - ours, ours - theirs
    if is_same_shape and not stale and not new:
        return TableChange(0, 0)
    changed = sorted({trial_id for trial_id, _ in stale | new})
    options: dict[str, Any] = {"mode": "append", "schema_mode": "merge"}
    if not is_same_shape:  # its first version, or a column has another type than it had: written whole
        options = {"mode": "overwrite", "schema_mode": "overwrite"}
    elif stale:
        options = {"mode": "overwrite", "schema_mode": "merge", "predicate": _is_one_of(changed)}
    version = -1 if table is None else table.version()
    commit = CommitProperties(app_transactions=[Transaction(APPLICATION, version + 1)], max_commit_retries=0)
    rows = results.sql(f"select * from {name}{f' where {_is_one_of(changed)}' if is_same_shape else ''}")
    try:
        write_deltalake(
            url if table is None else table, rows.to_arrow_reader(BATCH_ROWS), commit_properties=commit, **options
        )
    except CommitFailedError as error:
        raise TableConflictError(f"{url} was changed by another export meanwhile ({error}); call again") from None
    return TableChange(len({trial_id for trial_id, _ in new}), len({trial_id for trial_id, _ in stale}))


def _is_same_shape(table: Any, results: Results, name: str) -> bool:
    """Tell whether columns of one name have one type: to another, rows that are added would be cast, 2.5 to 2."""
    theirs = table.to_pyarrow_dataset().schema
    ours = results.sql(f"select * from {name} limit 0").to_arrow_reader(1).schema
    shared = set(theirs.names) & set(ours.names)
    return all(_kind(theirs.field(column).type) == _kind(ours.field(column).type) for column in shared)


def _kind(arrow_type: Any) -> str:
    """Return a type's name without the names that libraries give to a list's values and to UTC."""
    return re.sub(r"<\w+: |, tz=[^]]+", "<", str(arrow_type))


def _attempts(table: Any) -> set[tuple[str, str]]:
    """Return the trials of a table with the attempts they are of."""
    found = set()
    for batch in table.to_pyarrow_dataset().to_batches(columns=["trial_id", "attempt_id"]):
        found |= set(zip(batch["trial_id"].to_pylist(), batch["attempt_id"].to_pylist(), strict=True))
    return found


def _is_one_of(trial_ids: list[str]) -> str:
    """Return the condition, of SQL as DuckDB and Delta read it; identities are hexadecimal."""
    return f"trial_id in ({', '.join(map(repr, trial_ids))})"


DELTA = Exporter(
    name="delta",
    doc="To Delta tables of trials, metrics and curves below the folder or URL TO.",
    export=_export,
    library="the library deltalake",
    install="pip install 'depthrate[delta]'",
)
