"""The view `live`: what trials that run have logged, each row beside its trial's parameters."""

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
    """Return what trials have logged that are not committed; of a scope (sweep, its committed trials) those of that sweep."""
    packs = LiveReader(store).refresh()
    if scope is None or not packs:
        return newest_live_rows(packs, committed)
    sweep, known = scope
    spec = newest_specs(store).get(sweep)
    own = {trial_id for pack in packs if pack.sweep == sweep for trial_id in pack.params}
    asked = () if spec is None else spec.trial_ids(store) or ()
    return newest_live_rows(packs, committed, known | own | set(asked))


def create_live_view(
    connection: duckdb.DuckDBPyConnection, packs: Sequence[LivePack], columns: Columns, parameter_names: Iterable[str]
) -> None:
    """Create the view of what these packs have logged; a parameter named like another column becomes param_<name>.

    Of parameters that no running trial has, but `parameter_names`, the column is there and null.
    """
    rows, params = live_rows(packs, columns), {t: own for pack in packs for t, own in pack.params.items()}
    taken = {name.casefold() for name in rows.column_names}
    trials = pa.table({"trial_id": pa.array(list(params), pa.string())})
    given = parameter_columns([json.dumps(own) for own in params.values()])
    given |= {name: pa.nulls(len(params), pa.float64()) for name in parameter_names if name not in given}
    for name, values in given.items():
        shown = f"param_{name}" if name.casefold() in taken else name
        if shown.casefold() not in taken:
            taken.add(shown.casefold())
            trials = trials.append_column(shown, values)
    connection.register("live_rows", rows)
    connection.register("live_trials", trials)
    last = ("sweep", "attempt_id", "written_at")
    shown_columns = [f"r.{quoted(name)}" for name in rows.column_names if name not in last]
    shown_columns += [f"t.{quoted(name)}" for name in trials.column_names[1:]] + [f"r.{name}" for name in last]
    connection.execute(
        f"create temp view live as select {', '.join(shown_columns)} from live_rows r join live_trials t using (trial_id)"
    )
