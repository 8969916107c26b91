"""How a damaged file is damaged, and what can still be read of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from depthrate.storage.commits.source import first_line
from depthrate.storage.files.parquet import DataFile, open_parquet
from depthrate.storage.files.paths import DATA_TABLES
from depthrate.storage.tables.schema import Columns

BROKEN = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file may raise."""


def diagnose(
    name: str, content: bytes, file: DataFile, counting: set[str], columns: Columns
) -> tuple[str, str, set[str]]:
    """Return (kind, what, trials) of a file that does not hold what was committed."""
    if not content:
        return "damaged", "is empty", counting
    size = "" if len(content) == file.size else f"; it has {len(content)} bytes of {file.size}"
    try:
        with open_parquet(content) as parquet:
            if wrong := wrong_columns(name, parquet.schema_arrow, columns):
                return "wrong schema", wrong, counting
            bad = _bad_groups(parquet)
            if bad and not size:
                what = f"{len(bad)} of {parquet.num_row_groups} row groups cannot be read"
                return "damaged", what, _trials_in(parquet, bad, counting)
    except BROKEN as error:
        return "damaged", f"cannot be read ({first_line(error)}){size}", counting
    return "damaged", f"is not what was committed: its sha256 differs{size}", counting


def wrong_columns(name: str, schema: pa.Schema, columns: Columns) -> str | None:
    """Return how a file's columns are not those of its table; newer versions may have more of them, of any type."""
    if name not in columns.schemas:
        return None
    known = {each.name: each.type for each in columns.schemas[name]}
    for field_ in schema:
        standard = known.get(field_.name)
        is_feature = name == "features" and field_.name == "feature" and pa.types.is_fixed_size_list(field_.type)
        if standard not in (None, field_.type) and not is_feature:
            return f"column {field_.name!r} is {field_.type} instead of {standard}"
    lacking = [column for column in ("trial_id", "attempt_id", "step") if column not in schema.names]
    return f"lacks the columns {', '.join(lacking)}" if lacking and name in DATA_TABLES else None


def newer_columns(name: str, schema: pa.Schema, file: DataFile, columns: Columns) -> list[str]:
    """Return the columns that neither this version has nor a task claimed: those of a newer version."""
    known = {*(columns.schemas[name].names if name in columns.schemas else schema.names), *file.own_columns}
    if file.names_all or known.issuperset(schema.names):
        return [column for column in schema.names if column not in known]
    return [column for column in schema.names if column not in known | columns.former_types(name).keys()]


def _bad_groups(parquet: Any) -> list[int]:
    """Return the row groups that cannot be read."""
    bad = []
    for group in range(parquet.num_row_groups):
        try:
            parquet.read_row_group(group)
        except (pa.ArrowException, OSError):
            bad.append(group)
    return bad


def _trials_in(parquet: Any, groups: list[int], counting: set[str]) -> set[str]:
    """Return the trials that can have rows in these row groups, by their statistics."""
    column = parquet.schema_arrow.names.index("trial_id")
    lost: set[str] = set()
    for group in groups:
        statistics = parquet.metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return counting
        lost |= {trial_id for trial_id in counting if statistics.min <= trial_id <= statistics.max}
    return lost


def read_intact_rows(content: bytes) -> pa.Table:
    """Return the rows of a damaged file's row groups that can still be read.

    Raises:
        pa.ArrowException, OSError: none can.
    """
    with open_parquet(content) as parquet:
        bad = _bad_groups(parquet)
        return parquet.read_row_groups([group for group in range(parquet.num_row_groups) if group not in bad])
