"""The view `live`: rows logged by running trials, each with its trial's parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set

import duckdb
import pyarrow as pa

from depthrate.storage.attempts.live_curves import LivePack, LiveReader, live_rows, newest_live_rows
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.files.store import Store
from depthrate.storage.tables.custom_columns import quoted
from depthrate.storage.tables.parameters import parameter_columns
from depthrate.storage.tables.schema import Columns


def read_live(store: Store, committed: Set[str], scope: tuple[str, Set[str]] | None = None) -> list[LivePack]:
    """Read the logged rows of uncommitted trials.

    Args:
        scope: (sweep, its committed trials), to read only the rows of that sweep.
    """
    packs = LiveReader(store).refresh()
    if scope is None or not packs:
        return newest_live_rows(packs, committed)
    sweep, committed_of_sweep = scope
    spec = newest_specs(store).get(sweep)
    running = {trial_id for pack in packs if pack.sweep == sweep for trial_id in pack.params}
    requested = () if spec is None else spec.trial_ids(store) or ()
    return newest_live_rows(packs, committed, committed_of_sweep | running | set(requested))


def create_live_view(
    connection: duckdb.DuckDBPyConnection, packs: Sequence[LivePack], columns: Columns, parameter_names: Iterable[str]
) -> None:
    """Create the view of the packs' logged rows. A parameter named like another column becomes param_<name>.

    Parameters in `parameter_names` that no running trial has are null columns.
    """
    rows, params = live_rows(packs, columns), {t: values for pack in packs for t, values in pack.params.items()}
    taken = {name.casefold() for name in rows.column_names}
    trials = pa.table({"trial_id": pa.array(list(params), pa.string())})
    parameters = parameter_columns([json.dumps(values) for values in params.values()])
    parameters |= {name: pa.nulls(len(params), pa.float64()) for name in parameter_names if name not in parameters}
    for name, values in parameters.items():
        column = f"param_{name}" if name.casefold() in taken else name
        if column.casefold() not in taken:
            taken.add(column.casefold())
            trials = trials.append_column(column, values)
    connection.register("live_rows", rows)
    connection.register("live_trials", trials)
    last = ("sweep", "attempt_id", "written_at")
    selected = [f"r.{quoted(name)}" for name in rows.column_names if name not in last]
    selected += [f"t.{quoted(name)}" for name in trials.column_names[1:]] + [f"r.{name}" for name in last]
    connection.execute(
        f"create temp view live as select {', '.join(selected)} from live_rows r join live_trials t using (trial_id)"
    )
