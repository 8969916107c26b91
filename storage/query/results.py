"""Read a store with SQL over its views, as pandas or Arrow. Read-only by construction."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb
import pyarrow as pa

from depthrate.storage.catalog.specs import find_launched, newest_specs
from depthrate.storage.commits.snapshot import MAX_SCANS, Snapshot
from depthrate.storage.commits.visible_commits import Problem, first_line
from depthrate.storage.files.delayed_call import call_after
from depthrate.storage.files.paths import DATA_TABLES, sweep_of_path
from depthrate.storage.files.store import Store
from depthrate.storage.query.features import iter_layer
from depthrate.storage.query.membership import Membership
from depthrate.storage.query.query_limits import database
from depthrate.storage.query.snapshot_reader import SnapshotReader
from depthrate.storage.query.sql_checks import (
    VIEWS,
    QueryError,
    QueryMemoryError,
    candidates,
    compared_sweeps,
    elsewhere_hint,
    is_select,
    is_show_tables,
    named_views,
    renamed_hint,
    require_characters,
)
from depthrate.storage.query.views import Views
from depthrate.storage.tables.custom_columns import quoted
from depthrate.storage.tables.parameters import AddedParameters, nothing_added
from depthrate.storage.tables.schema import Columns

if TYPE_CHECKING:
    import numpy as np


T = TypeVar("T")
Judge = Callable[["Results", Iterable[Collection[str]]], Mapping[str, str]]
"""Judges the training of trials, of each sweep by itself: trial -> judgement."""
BATCH_ROWS = 100_000


class Results:
    """The committed results of a store as of its opening or last refresh.

    Later compactions do not change the results. Visible trials that become permanently unavailable (removed, repaired, deleted)
    are left out from then on, which is reported in `problems` and as a warning in the log.
    """

    def __init__(
        self,
        store: Store,
        columns: Columns,
        added: AddedParameters | None = None,
        judge: Judge | None = None,
        snapshot: Snapshot | None = None,
    ):
        """Open a store.

        Args:
            columns: The measured columns. Other columns in the store's files are read as well.
            added: Parameters that tasks gained after their first trials. They are shown for earlier trials too.
            judge: Judge of trials, for the column `judgement` of `results`. Default: the column is null.
            snapshot: Snapshot taken by the caller. If given, tags are not read.
        """
        self.store, self.columns, self._added, self._judge = store, columns, added or nothing_added, judge
        self._reader = SnapshotReader(store, snapshot)
        self._scope: tuple[str, frozenset[str]] | None = None
        self._in_memory: Mapping[str, pa.Table] = {}
        self._has_tags = snapshot is None
        self._last_views: Views | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The committed trials and their files."""
        return self._reader.snapshot

    @property
    def problems(self) -> list[Problem]:
        """Corrupt and foreign files, whose rows are not visible."""
        return self.snapshot.problems

    @property
    def _views(self) -> Views:
        views = self._last_views
        if views is None or views.snapshot is not self.snapshot:
            given = (self.store, self.snapshot, self.columns, self._added, self._scope, self._in_memory, self._has_tags)
            # of a copy, as views and results that refer to each other would be freed only by a collection
            views = self._last_views = Views(*given, self._changed()._judgements)
        return views

    def _judgements(self) -> Mapping[str, str]:
        sweeps = self.membership().of_sweep.values() if self._scope is None else [self._scope[1]]
        return {} if self._judge is None else self._judge(self, sweeps)

    def _changed(self, **changes: Any) -> Self:
        """Return the same results with other attributes, and a reader of their own."""
        results = copy(self)
        vars(results).update({"_reader": copy(self._reader), "_last_views": None} | changes)
        return results

    def refresh(self) -> Self:
        """Read the commits made since the last refresh, and return self."""
        self._reader.refresh()
        return self

    def for_sweep(self, sweep: str) -> Self:
        """Return the same store with only the trials that the newest launch of one sweep requests.

        Raises:
            QueryError: The sweep has no committed trials.
        """
        members, launched = self.membership().of_sweep, find_launched(self.store, sweep) if "@" in sweep else None
        sweep = sweep if launched is None else launched[0]
        if sweep not in members:
            sweeps = ", ".join(sorted(members)) or "none yet"
            raise QueryError(f"no committed trials of sweep {sweep!r} in {self.store.url}. Sweeps: {sweeps}")
        return self.only(members[sweep], sweep)

    def require_sweeps(self, query: str) -> None:
        """Check that the store has the sweeps with which a query compares the column `sweep`.

        Raises:
            QueryError: It has no sweep of that name. The message suggests the nearest ones.
        """
        if (named := compared_sweeps(query)) and is_select(query):
            of_paths = {sweep_of_path(path) for path in self.snapshot.attempts}
            known = {*self.membership().of_sweep, *newest_specs(self.store), *of_paths}
            if unknown := sorted(named - known):
                similar = ", ".join(difflib.get_close_matches(unknown[0], known, n=3, cutoff=0.0)) or "none yet"
                raise QueryError(f"{self.store.url} has no sweep {unknown[0]!r}. Nearest: {similar}")

    def only(self, trial_ids: Iterable[str], sweep: str) -> Self:
        """Return the same store with only some trials, as the trials of one sweep."""
        return self._changed(_scope=(sweep, frozenset(trial_ids)))

    def without(self, rows: Set[tuple[str, str]]) -> Self:
        """Return the same store without some (trial, attempt).

        A file is not read if none of its visible rows remain.
        """
        return self._changed(_reader=self._reader.without(rows))

    def with_removed(self) -> Self:
        """Return the same store including the results that `trials rm` removed and that are not purged."""
        return self._changed(_reader=self._reader.with_removed())

    def in_memory(self, trial_ids: Iterable[str], without: Collection[str] = (), *, all_layers: bool = True) -> Self:
        """Return the same results with the metrics and curves of these trials in memory, which speeds up repeated queries.

        Trials of other sweeps remain in `trials`, but have no metrics.

        Args:
            without: Columns of `metrics` to leave out. Queries cannot use them.
            all_layers: Whether `metrics` has the rows of all layers, and not only of the last one.

        Raises:
            QueryError: The store cannot be read.
        """
        import pyarrow.compute as pc  # 40 ms that a single query does not need

        wanted = pa.array(sorted(set(trial_ids)), pa.string())

        def read(relation: duckdb.DuckDBPyRelation) -> pa.Table:
            """Keep the wanted rows of each batch, with strings as numbers, since each string is in many rows."""
            reader = relation.to_arrow_reader(BATCH_ROWS)
            texts = [field.name for field in reader.schema if field.type == pa.string()]
            parts = [_encoded(reader.schema.empty_table(), texts)]
            for batch in reader:
                is_wanted = pc.is_in(batch["trial_id"], value_set=wanted)
                parts.append(_encoded(pa.Table.from_batches([batch]).filter(is_wanted), texts))
            return pa.concat_tables(parts)

        tables = {}
        for table in ("metrics", "curves"):
            names = self.sql(f"select * from {table} limit 0").columns
            selected = ", ".join(quoted(name) for name in names if table == "curves" or name not in without)
            rows = "metrics where is_last" if table == "metrics" and not all_layers else table
            tables[table] = self.stream(f"select {selected} from {rows}", read)
        return self._changed(_in_memory=tables)

    def numbered_rows(self, query: str, trial_ids: Sequence[str], order: Iterable[str] = ()) -> pa.Table:
        """Return a query's rows of some trials, ordered by trial and then by the columns in `order`.

        trial_id is replaced by its index in `trial_ids`. The rows are read in batches, since the strings of all rows
        would take more memory than the numbers.

        Raises:
            QueryError: As in `sql`.
        """
        import pyarrow.compute as pc

        wanted = pa.array(trial_ids, pa.string())
        pa.default_memory_pool().release_unused()  # of earlier queries: up to several times a table

        def number(table: pa.Table) -> pa.Table:
            numbers = pc.index_in(table["trial_id"], value_set=wanted)  # null for other trials
            place = table.schema.get_field_index("trial_id")
            return table.set_column(place, "trial_id", numbers).filter(numbers.is_valid())

        def read(relation: duckdb.DuckDBPyRelation) -> pa.Table:
            reader = relation.to_arrow_reader(BATCH_ROWS)
            tables = [number(reader.schema.empty_table())]
            return pa.concat_tables([*tables, *(number(pa.Table.from_batches([batch])) for batch in reader)])

        rows = self.stream(query, read)
        places = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in ("trial_id", *order)])
        ordered = {}
        for name in rows.column_names:  # one column is copied at a time
            ordered[name] = rows[name].take(places)
            rows = rows.drop_columns([name])
        return pa.table(ordered)

    def membership(self) -> Membership:
        """Return the sweeps' committed trials."""
        return self._views.membership

    def sql(
        self, query: str, *, lazy: bool = False, memory_gb: float | None = None, timeout_s: float | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation (.df(), .arrow(), .fetchall()) over the views.

        It is computed immediately. Files that turn out to be corrupt are left out and reported in `problems`.

        Args:
            lazy: Whether to compute the relation while it is read (.fetch_record_batch()), for results that exceed the memory.
                `timeout_s` then has no effect.
            memory_gb: DuckDB's memory limit in GB. Default: half of the memory.
            timeout_s: Time limit in seconds. Default: no limit.

        Raises:
            QueryError: The query is invalid, does anything but read the views, or exceeds a limit.
        """
        if lazy:
            require_characters(query)
            return self._relation(query, memory_gb=memory_gb)
        return self.stream(query, duckdb.DuckDBPyRelation.materialize, memory_gb=memory_gb, timeout_s=timeout_s)

    def stream(
        self,
        query: str,
        consume: Callable[[duckdb.DuckDBPyRelation], T],
        *,
        memory_gb: float | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Call a function with the relation, which it may read in batches (.to_arrow_reader()), and return its value.

        If a file turns out to be corrupt or was replaced in the meantime, the function is called again and reads from the first
        row.

        Args:
            memory_gb: DuckDB's memory limit in GB. Default: half of the memory.
            timeout_s: Time limit in seconds. Default: no limit.

        Raises:
            QueryError: As in `sql`.
        """
        require_characters(query, is_timed=timeout_s is not None)
        for _ in range(MAX_SCANS):
            connection = database(os.getpid(), memory_gb).cursor()
            try:
                with call_after(timeout_s, connection.interrupt):
                    return consume(self._relation(query, connection))
            except (QueryError, MemoryError):
                raise
            except duckdb.InterruptException:
                if timeout_s is None:
                    raise
                remedy = "Raise --timeout-seconds (Python: timeout_s)."
                raise QueryError(f"query timed out after {timeout_s:g} s. {remedy}") from None
            except duckdb.OutOfMemoryException as error:
                remedy = "Raise --memory-gb (Python: memory_gb), or select less."
                raise QueryMemoryError(f"query exceeds its memory limit ({first_line(error)}). {remedy}") from None
            except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.DataError) as error:
                raise QueryError(self._explained(error, query)) from None
            # Exceptions of the function's library are included, since it reports a failed read in its own way.
            except Exception as error:
                if isinstance(error, RuntimeError) and str(error) == "Query interrupted":
                    raise KeyboardInterrupt from None  # DuckDB's error for Ctrl-C
                failure = error
            names = set(named_views(query))
            tables = names & {"trials", *DATA_TABLES} | (
                {"trials", "metrics", "curves"} if "results" in names else set()
            )
            if not self._reader.rescan(tables):
                break
        if isinstance(failure, pa.ArrowException | duckdb.Error | OSError) and getattr(failure, "errno", None) is None:
            raise QueryError(first_line(failure))
        raise failure

    def _explained(self, error: duckdb.Error, query: str) -> str:
        """Return the message of an invalid query, with the column that may be meant."""
        hint = (
            renamed_hint(str(error), query, self.column_names(query))
            or elsewhere_hint(str(error), self.column_names("from trials"))
            or candidates(error)
        )
        is_unquoted = re.search(r'(?<!group )(?<!order )(?<!partition )(?<!")\bby\b', query, re.IGNORECASE)
        if isinstance(error, duckdb.ParserException) and is_unquoted and "fits" in named_views(query):
            hint = " The column by of fits is a reserved word of SQL: write split_by instead."
        return f"{hint[1:]} {first_line(error).rstrip('.!')}. Views: {', '.join(VIEWS)}".lstrip()

    def features(self, trial_id: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels [N], features [N, d]) of one trial at one layer.

        Reads only that layer.

        Raises:
            KeyError: The trial has no features there (its sweep did not request them, or it is not committed).
        """
        import numpy as np

        index = self.snapshot.commit_index.get(trial_id)
        sources = [] if index is None else [self.snapshot.sources[index]]
        if parts := list(iter_layer(self.store, sources, layer, {trial_id})):
            return np.concatenate([labels for _, labels, _ in parts]), np.concatenate([f for _, _, f in parts])
        raise KeyError(
            f"no features of trial {trial_id!r} at layer {layer} in {self.store.url}. Built-in tasks store them if the sweep "
            "sets `features: all` (or class_means, sample:<n>), custom tasks if they return a table `features`."
        )

    def iter_features(self, layer: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield (trial_id, labels [N], features [N, d]) of every trial with features at `layer`.

        Reads only that layer.
        """
        return iter_layer(self.store, self.snapshot.sources, layer, None if self._scope is None else self._scope[1])

    def column_names(self, query: str) -> list[str]:
        """Return the columns of the views that a query names, or an empty list if they cannot be read."""
        try:
            named = [name for name in named_views(query) if name != "features"]
            return [column for name in named for column in self._relation(f"select * from {name} limit 0").columns]
        except (pa.ArrowException, OSError, duckdb.Error):
            return []

    def parameter_names(self) -> list[str]:
        """Return the columns of the view `trials` that are parameters."""
        return self._views.parameter_names()

    def varying_parameters(self, names: Collection[str]) -> list[str]:
        """Return those of some parameters that differ between trials."""
        return self._views.trials.varying_parameters(names)

    def _relation(
        self, query: str, connection: duckdb.DuckDBPyConnection | None = None, memory_gb: float | None = None
    ) -> duckdb.DuckDBPyRelation:
        kinds = [statement.type for statement in duckdb.extract_statements(query)]
        if kinds not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.EXPLAIN]):
            raise QueryError("the store is read-only. Pass one SELECT statement.")
        # Each query has a new connection with separate views, since a connection with an unread result refuses the next query.
        connection = database(os.getpid(), memory_gb).cursor() if connection is None else connection
        if is_show_tables(query):
            rows = ", ".join(f"('{name}', '{row}')" for name, row in VIEWS.items())
            return connection.sql(f'select * from (values {rows}) as views("view", "one row per")')
        self._views.create(connection, query)
        return connection.sql(query)


def _encoded(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with some columns encoded as dictionaries: a number per row and each string once."""
    for name in names:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    return table
