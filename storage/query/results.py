"""Read a store with SQL over its views, as pandas or Arrow. Read-only by construction."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb
import pyarrow as pa

from depthrate.deprecated import old_method
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.fits import parse_fits
from depthrate.storage.catalog.removals import RemovalKind
from depthrate.storage.catalog.specs import find_launched, newest_specs
from depthrate.storage.catalog.tags import read_tags
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import MAX_SCANS, Snapshot, take_snapshot
from depthrate.storage.commits.source import Problem, VisibleCommit, find_corrupt_files, first_line, without_rows
from depthrate.storage.files.delayed_call import call_after
from depthrate.storage.files.paths import DATA_TABLES, attempt_of_path, removal_path, sweep_of_path
from depthrate.storage.files.store import Store
from depthrate.storage.query.features import read_layer
from depthrate.storage.query.membership import Membership, read_membership, with_sweep
from depthrate.storage.query.query_limits import database
from depthrate.storage.query.sql_checks import QueryError, QueryMemoryError, candidates, is_select, require_characters
from depthrate.storage.query.trials_table import TrialsTable
from depthrate.storage.query.views import (
    VIEWS,
    compared_sweeps,
    create_live_view,
    elsewhere_hint,
    is_show_tables,
    may_name,
    named_views,
    names_sweep,
    read_live,
    renamed_hint,
    results_view,
)
from depthrate.storage.tables.custom_columns import CUSTOM_TYPES, quoted
from depthrate.storage.tables.parameters import AddedParameters, nothing_added
from depthrate.storage.tables.schema import ATTEMPTS, FITS, MEASURED_TABLES, TRIALS, Columns, row_keys

if TYPE_CHECKING:
    import numpy as np


log = logging.getLogger("depthrate")
T = TypeVar("T")
BATCH_ROWS = 100_000


class Results:
    """The committed results of a store as of its opening or last refresh.

    Later compactions do not change the results. Visible trials that become permanently unavailable (removed, repaired, deleted)
    are left out from then on, which is reported in `problems` and as a warning in the log.
    """

    def __init__(
        self, store: Store, columns: Columns, added: AddedParameters | None = None, snapshot: Snapshot | None = None
    ):
        """Open a store.

        Args:
            columns: The measured columns. Other columns in the store's files are read as well.
            added: Parameters that tasks gained after their first trials. They are shown for earlier trials too.
            snapshot: Snapshot taken by the caller, with all columns of the trials. If given, tags are not read.
        """
        self.store, self.columns, self._added = store, columns, added or nothing_added
        self._corrupt: set[str] = set()
        self._scope: tuple[str, frozenset[str]] | None = None
        self._membership: Membership | None = None
        self._in_memory: Mapping[str, pa.Table] = {}
        """Tables queried instead of files."""
        self._cache = SnapshotCache(commit_columns=TRIALS.names)
        self._has_tags = snapshot is None
        if snapshot is None:
            self.refresh()
        else:
            self._reset(snapshot)

    @property
    def problems(self) -> list[Problem]:
        """Corrupt and foreign files, whose rows are not visible."""
        return self.snapshot.problems

    def refresh(self) -> Self:
        """Read the commits made since the last refresh, and return self."""
        self._reset(take_snapshot(self.store, ignore=self._corrupt, cache=self._cache))
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

    of = old_method("Results", "of")

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
        scoped = copy(self)
        scoped._reset(self.snapshot)
        scoped._scope = (sweep, frozenset(trial_ids))
        return scoped

    def without(self, rows: Set[tuple[str, str]]) -> Self:
        """Return the same store without some (trial, attempt).

        A file is not read if none of its visible rows remain.
        """
        remaining = copy(self)
        remaining._hide(rows)
        return remaining

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
        loaded = copy(self)  # after reading both, since a compaction in the meantime may have refreshed the snapshot
        loaded._in_memory = tables
        return loaded

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
        if self._membership is None:
            self._membership = read_membership(self.store, self.snapshot)
        return self._membership

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
        require_characters(query)
        shown = query
        for _ in range(MAX_SCANS):
            connection = database(os.getpid(), memory_gb).cursor()
            try:
                with call_after(timeout_s, connection.interrupt):
                    return consume(self._relation(query, connection, shown=shown))
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
                if isinstance(error, duckdb.BinderException) and shown == query:
                    shown = f"* {query}"  # again with all columns, which the error then lists
                    continue
                hint = (
                    renamed_hint(str(error), query, self.column_names(query))
                    or elsewhere_hint(str(error), self.column_names("from trials"))
                    or candidates(error)
                )
                is_unquoted = re.search(r'(?<!group )(?<!order )(?<!partition )(?<!")\bby\b', query, re.IGNORECASE)
                if isinstance(error, duckdb.ParserException) and is_unquoted and "fits" in named_views(query):
                    hint = " The column by of fits is a reserved word of SQL: write split_by instead."
                raise QueryError(
                    f"{hint[1:]} {first_line(error).rstrip('.!')}. Views: {', '.join(VIEWS)}".lstrip()
                ) from None
            # Exceptions of the function's library are included, since it reports a failed read in its own way.
            except Exception as error:
                if isinstance(error, RuntimeError) and str(error) == "Query interrupted":
                    raise KeyboardInterrupt from None  # DuckDB's error for Ctrl-C
                failure = error
            if not self._rescan(query):
                break
        if isinstance(failure, pa.ArrowException | duckdb.Error | OSError) and getattr(failure, "errno", None) is None:
            raise QueryError(first_line(failure))
        raise failure

    def features(self, trial_id: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels [N], features [N, d]) of one trial at one layer.

        Reads only that layer.

        Raises:
            KeyError: The trial has no features there (its sweep did not request them, or it is not committed).
        """
        import numpy as np

        index = self.snapshot.commit_index.get(trial_id)
        if index is not None:
            parts = list(self._layer_of(self.snapshot.sources[index], layer, trial_id))
            if parts:
                return np.concatenate([labels for _, labels, _ in parts]), np.concatenate([f for _, _, f in parts])
        raise KeyError(
            f"no features of trial {trial_id!r} at layer {layer} in {self.store.url}. Built-in tasks store them if the sweep "
            "sets `features: all` (or class_means, sample:<n>), custom tasks if they return a table `features`."
        )

    def iter_features(self, layer: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield (trial_id, labels [N], features [N, d]) of every trial with features at `layer`.

        Reads only that layer.
        """
        for source in self.snapshot.sources:
            for of_trial in self._layer_of(source, layer):
                if self._scope is None or of_trial[0] in self._scope[1]:
                    yield of_trial

    def _layer_of(
        self, source: VisibleCommit, layer: int, trial_id: str | None = None
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        attempts = {trial: attempt for trial, attempt in row_keys(source.trials) if trial_id in (None, trial)}
        for file in source.files.get("features", ()):
            yield from read_layer(self.store, file, layer, attempts)

    def _rescan(self, query: str) -> bool:
        """Refresh after a query failed to read a file.

        Return whether the file was replaced by a compaction or is corrupt.
        """
        names = set(named_views(query))
        tables = (names & {"trials", *DATA_TABLES}) | ({"trials", "metrics", "curves"} if "results" in names else set())
        named = [file for table in tables for file in self.snapshot.files(table)]
        previous = self.snapshot
        self.refresh()
        if previous.listing != self.snapshot.listing:
            self._pin_snapshot(previous)
        if {source.path for source in previous.sources} != {source.path for source in self.snapshot.sources}:
            return True
        corrupt = find_corrupt_files(self.store, named)
        self._corrupt.update(corrupt)
        if corrupt:
            self.refresh()
        return bool(corrupt)

    def _pin_snapshot(self, previous: Snapshot) -> None:
        """Hide rows committed since a previous snapshot.

        If some rows of the previous snapshot are gone, warn that the store has changed.
        """
        before, now = set(row_keys(previous.trials)), set(row_keys(self.snapshot.trials))
        gone, new = before - now, now - before
        if gone:
            trial_ids = {trial_id for trial_id, _ in gone}
            new = {row for row in new if row[0] not in trial_ids}  # another attempt has committed them since
            message = (
                f"the store has changed since it was opened: {len(gone)} of {len(before)} trials are deleted or corrupt. All "
                "further results are without them. Repeat earlier queries"
            )
            self.snapshot.problems.append(Problem(self.store.url, message))
            log.warning("%s: %s", self.store.url, message)
        if new:  # hidden even then: if trials come and go, a query would never read all files that it has listed
            self._hide(new)

    def _hide(self, rows: Set[tuple[str, str]]) -> None:
        sources = [without_rows(source, rows) for source in self.snapshot.sources]
        self._reset(replace(self.snapshot, sources=[source for source in sources if source.trials.num_rows]))

    def column_names(self, query: str) -> list[str]:
        """Return the columns of the views that a query names, or an empty list if they cannot be read."""
        try:
            named = [name for name in named_views(query) if name != "features"]
            return [column for name in named for column in self._relation(f"select * from {name} limit 0").columns]
        except (pa.ArrowException, OSError, duckdb.Error):
            return []

    def with_removed(self) -> Self:
        """Return the same store including the results that `trials rm` removed and that are not purged."""
        complete = copy(self)
        removals = self.snapshot.removals.removals
        complete._corrupt = self._corrupt | {
            removal_path(r.removal_id) for r in removals if r.kind is RemovalKind.TRIALS
        }
        return complete.refresh()

    def _reset(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._trials: TrialsTable | None = None
        self._membership = None

    def _values_used(self, query: str) -> dict[str, str]:
        """Return column -> SQL for the value used in place of null, for the parameters that a query may name."""
        columns, terms = self._all_trials().parameters, dict[str, list[str]]()
        named = {name for name, column in columns.items() if may_name(query, column)}
        for task in self._all_trials().tasks if named else ():
            for name, text in self.columns.nulls(task).items():
                if name in named:
                    terms.setdefault(columns[name], []).append(f"when task = '{task}' then ({text})")
        return {name: f"case {' '.join(part)} end" for name, part in terms.items()}

    def _trials_table(self, query: str, used: Iterable[str]) -> pa.Table:
        """Return the trials with the columns that a query and the SQL of other columns may name."""
        trials = self._all_trials().read(lambda name: may_name(query, name) or any(may_name(sql, name) for sql in used))
        if self._scope is not None:
            trials = with_sweep(trials, pa.array([self._scope[0]] * trials.num_rows, pa.string()))
        # a parameter may be called `tags`
        if may_name(query, "tags") and "tags" not in map(str.casefold, trials.column_names):
            tags = read_tags(self.store) if self._has_tags else {}
            ids, tags_type = trials["trial_id"].to_pylist() if tags else [], pa.list_(pa.string())
            # pa.array imports pandas
            of_trial = pa.array([tags.get(t) for t in ids], tags_type) if tags else pa.nulls(trials.num_rows, tags_type)
            trials = trials.append_column("tags", of_trial)
        return trials

    def parameter_names(self) -> list[str]:
        """Return the columns of the view `trials` that are parameters."""
        return list(self._all_trials().parameters.values())

    def constant_parameters(self) -> set[str]:
        """Return the parameters with the same value in all trials, as far as that is known without reading the trials."""
        return self._all_trials().constant_parameters

    def varying_parameters(self) -> set[str]:
        """Return the parameters that differ between trials, as far as that is known without reading the trials."""
        return self._all_trials().varying_parameters

    def _all_trials(self) -> TrialsTable:
        if self._trials is None:
            trial_ids = None if self._scope is None else self._scope[1]
            self._trials = TrialsTable(self.store, self.snapshot.sources, self._added, trial_ids)
        return self._trials

    def _relation(
        self,
        query: str,
        connection: duckdb.DuckDBPyConnection | None = None,
        memory_gb: float | None = None,
        shown: str | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Return the relation of a query. The views have the columns that `shown` may name, by default the query."""
        kinds = [statement.type for statement in duckdb.extract_statements(query)]
        if kinds not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.EXPLAIN]):
            raise QueryError("the store is read-only. Pass one SELECT statement.")
        # Each query has a new connection with separate views, since a connection with an unread result refuses the next query.
        connection = database(os.getpid(), memory_gb).cursor() if connection is None else connection
        if is_show_tables(query):
            rows = ", ".join(f"('{name}', '{row}')" for name, row in VIEWS.items())
            return connection.sql(f'select * from (values {rows}) as views("view", "one row per")')
        self._create_views(connection, named_views(query), set(), shown or query)
        return connection.sql(query)

    def _create_views(
        self, connection: duckdb.DuckDBPyConnection, names: Iterable[str], created: set[str], query: str
    ) -> None:
        """Create the views that a query names and the views they depend on. Opening all views would take longer."""
        for name in names:
            if name in created:
                continue
            created.add(name)
            if name == "trials":
                used = self._values_used(query)
                trials = self._trials_table(query, used.values())
                is_many = self._scope is None and names_sweep(query)
                connection.register("given", self.membership().table(trials) if is_many else trials)
                nulls = {name: trials[name].null_count for name in used}  # a column of nulls has no type
                terms = [
                    f"{sql if count == len(trials) else f'coalesce({quoted(name)}, {sql})'} as {quoted(name)}"
                    for (name, count), sql in zip(nulls.items(), used.values(), strict=True)
                    if count and (count == len(trials) or trials[name].type != pa.string())
                ]
                replaced = f"replace ({', '.join(terms)})" if terms else ""
                connection.execute(f"create temp view trials as select * {replaced} from given")
            elif name in self._in_memory:
                connection.register(name, self._in_memory[name])
            elif name in DATA_TABLES:
                self._create_table_view(connection, name)
            elif name == "results":
                self._create_views(connection, ["trials", "metrics", "curves"], created, query)
                connection.execute(self._results_view(query))
            elif name == "fits":
                connection.register("fits", self._fits())
            elif name == "live":
                packs = read_live(self.store, self.snapshot.commit_index.keys(), self._scope)
                of_sweeps = [name for spec in newest_specs(self.store).values() for name in spec.parameter_names()]
                create_live_view(connection, packs, self.columns, [*self.parameter_names(), *of_sweeps])
            elif name == "attempts":
                records = read_records(self.store, self.snapshot)
                connection.register("attempts", pa.Table.from_pylist(records, ATTEMPTS))

    def _create_table_view(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        """Create the view of a table: all rows of most files, and only the rows of visible trials of the remaining files."""
        sources, schema = (
            self.snapshot.sources,
            pa.schema([*self.columns.schemas[name], *self._custom_columns(name).items()]),
        )
        complete = [index for index, source in enumerate(sources) if source.is_fully_visible]
        rest = [index for index, source in enumerate(sources) if not source.is_fully_visible]
        # An attempt's ID distinguishes its rows from those of other attempts, but not the rows of its own parts, which hold
        # the same trial if the response to a commit was lost. Compactions may hold copies of the same rows.
        partial = [[index] for index in rest if sources[index].manifest is not None]
        parts_of = Counter[str]()
        loose: dict[int, list[int]] = {}
        for index in (index for index in rest if sources[index].manifest is None):
            attempt_id = attempt_of_path(sources[index].path)
            loose.setdefault(parts_of[attempt_id], []).append(index)
            parts_of[attempt_id] += 1
        partial += loose.values()
        connection.register(f"complete_{name}", self._dataset(name, complete, schema))
        parts = [f"select * from complete_{name}"]
        for index, group in enumerate(group for group in partial if group):
            visible = pa.concat_tables([sources[i].trials.select(["trial_id", "attempt_id"]) for i in group])
            connection.register(f"part_{name}_{index}", self._dataset(name, group, schema))
            connection.register(f"visible_{name}_{index}", visible)
            join = f"semi join visible_{name}_{index} using (trial_id, attempt_id)"
            parts.append(f"select * from part_{name}_{index} {join}")
        rows = " union all ".join(parts)
        if self._scope is not None and not self.snapshot.commit_index.keys() <= self._scope[1]:
            # only where it hides rows: the join may hold the whole table in memory
            connection.register("scope", pa.table({"trial_id": pa.array(sorted(self._scope[1]), pa.string())}))
            rows = f"select * from ({rows}) semi join scope using (trial_id)"
        # DuckDB passes a comparison to the scan, which skips row groups by it, but not a column alone
        flags = [quoted(field.name) for field in schema if pa.types.is_boolean(field.type)]
        compared = ", ".join(f"{flag} = true as {flag}" for flag in flags)
        connection.execute(
            f"create temp view {name} as select *{f' replace ({compared})' if flags else ''} from ({rows})"
        )

    def _dataset(self, name: str, sources: list[int], schema: pa.Schema) -> Any:
        """Return a table's files as an Arrow dataset with a known schema, so that opening it reads no footer."""
        if not any(self.snapshot.sources[index].files.get(name) for index in sources):
            return pa.Table.from_batches([], schema)
        from depthrate.storage.query.scan import TableDataset  # imports pandas, which trials and fits alone do not need

        return TableDataset.from_snapshot(self.store, self.snapshot, name, sources, schema)

    def _custom_columns(self, name: str) -> dict[str, pa.DataType]:
        """Return a table's columns beyond the standard ones: columns of the files, then declared columns that no file has yet.

        A column whose type differs between tasks, or whose name is not unique in SQL, is left out and reported.
        """
        types: dict[str, set[str]] = {}
        for file in self.snapshot.files(name):
            for column, type_name in file.own_columns.items():
                types.setdefault(column, set()).add(type_name)
        if not all(file.names_all for file in self.snapshot.files(name)):
            for column, kind in self.columns.former_types(name).items():
                types.setdefault(column, set()).add(str(kind))
        standard = self.columns.schemas[name].names  # a later version may have added a user's column as a standard one
        custom, names_in_sql = dict[str, pa.DataType](), {column.casefold() for column in standard}
        for column, type_names in types.items():
            if len(type_names) > 1:
                reason = f"has the types {sorted(type_names)} in different tasks. Remove the trials with one of them"
                self._report(Problem(f"{name}.{column}", reason))
            elif column not in standard:
                custom[column] = CUSTOM_TYPES[min(type_names)]
        custom |= {c: kind for c, kind in self.columns.custom_types(name).items() if c not in types}
        nameable = {}  # names that are distinct in SQL, as are the names of all columns written today
        for column, kind in custom.items():
            if column and column.casefold() not in names_in_sql:
                names_in_sql.add(column.casefold())
                nameable[column] = kind
            else:
                reason = "is empty, or in SQL the name of another column. It is left out. Rename it: depthrate verify --repair"
                self._report(Problem(f"{name}.{column!r:.80}", reason))
        return nameable

    def _report(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _results_view(self, query: str) -> str:
        parameters, always_last = self.parameter_names(), self.columns.always_last
        standard = {table: self.columns.schemas[table].names for table in MEASURED_TABLES}
        metrics = [n for n in standard["metrics"] if n not in ("trial_id", "attempt_id", "is_last")]
        curves = [n for n in standard["curves"] if n not in standard["metrics"]]
        added = self._custom_columns("metrics").items()
        metrics += [n for n, kind in added if n not in always_last or kind == pa.float64()]
        custom = list(self._custom_columns("curves"))
        in_memory = {name: table.column_names for name, table in self._in_memory.items()}
        metrics = [name for name in metrics if name in in_memory.get("metrics", metrics)]
        curves, custom = ([n for n in names if n in in_memory.get("curves", names)] for names in (curves, custom))
        complete = self.columns.complete
        return results_view(parameters, metrics, curves, custom, query, always_last=always_last, complete=complete)

    def _fits(self) -> pa.Table:
        tables = [pa.Table.from_batches([], FITS)]
        for path in self.store.list("fits"):
            try:
                tables.append(parse_fits(self.store.read(path)))
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                self.problems.append(Problem(path, f"cannot be read ({first_line(error)}). Fit the sweep again"))
        fits = pa.concat_tables(tables)
        fits = fits.append_column("split_by", fits["by"])  # `by` is a reserved word of SQL
        if self._scope is None:
            return fits
        return fits.filter(pa.array([sweep == self._scope[0] for sweep in fits["sweep"].to_pylist()], pa.bool_()))


def _encoded(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with some columns encoded as dictionaries: a number per row and each string once."""
    for name in names:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    return table
