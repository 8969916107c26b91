"""Results whose metrics and curves are in memory: for whoever asks many questions of the same rows, as a report does."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy

import pyarrow as pa
import pyarrow.compute as pc

from depthrate.storage.columns import quoted
from depthrate.storage.query import Results

TABLES = ("metrics", "curves")


def held_in_memory(results: Results, trial_ids: Iterable[str], without: Collection[str] = ()) -> Results:
    """Return the same results with the measurements of these trials read once, but for some columns, which no query then knows.

    Trials of other sweeps keep their rows of `trials`, and have no measurements.

    Raises:
        QueryError: the store cannot be read.
    """
    wanted = pa.array(sorted(set(trial_ids)), pa.string())
    tables = {}
    for table in TABLES:
        known = results.sql(f"select * from {table} limit 0").columns
        chosen = ", ".join(quoted(name) for name in known if name not in without)
        rows = results.sql(f"select {chosen} from {table}").to_arrow_table()
        tables[table] = rows.filter(pc.is_in(rows["trial_id"], value_set=wanted))
    held = copy(results)  # after both were read: a compaction meanwhile has moved the snapshot on
    held.held = tables
    return held
