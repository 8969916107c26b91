"""Read a store: SQL over its views, pandas and Arrow out. Read-only by construction."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import duckdb
import pyarrow as pa

from depthrate.deprecated import old_method
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.fits import fits_of
from depthrate.storage.catalog.removals import RemovalKind
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.catalog.tags import read_tags
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import MAX_SCANS, Snapshot, take_snapshot
from depthrate.storage.commits.source import Problem, VisibleCommit, find_broken_files, first_line, source_without
from depthrate.storage.files.paths import DATA_TABLES, attempt_of_path, removal_path
from depthrate.storage.files.store import Store
from depthrate.storage.query.features import read_layer
from depthrate.storage.query.live_view import create_live_view, read_live
from depthrate.storage.query.membership import Membership, read_membership, with_sweep
from depthrate.storage.query.query_limits import database, query_timeout
from depthrate.storage.query.results_view import results_view
from depthrate.storage.query.sql_checks import QueryError, QueryMemoryError, candidates, require_characters
from depthrate.storage.query.views import VIEWS, asks_for_tables, elsewhere_hint, named_views, names_sweep, renamed_hint
from depthrate.storage.tables.custom_columns import OWN_TYPES, quoted
from depthrate.storage.tables.parameters import Added, nothing_added, with_parameter_columns
from depthrate.storage.tables.schema import ATTEMPTS, FITS, MEASURED_TABLES, TRIALS, Columns

if TYPE_CHECKING:
    import numpy as np


log = logging.getLogger("depthrate")


def _rows_of(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Return the (trial, attempt) that count."""
    return set(zip(*(snapshot.trials[name].to_pylist() for name in ("trial_id", "attempt_id")), strict=True))


class Results:
    """The committed results of a store, as they were when it was opened, or last refreshed.

    A compaction meanwhile changes nothing of that. Trials that were there and are gone for good (removed, repaired, deleted)
    are left out from then on, which it says: in `problems`, and as a warning of the log.
    """

    def __init__(self, store: Store, columns: Columns, added: Added | None = None, snapshot: Snapshot | None = None):
        """Open a store whose measured columns are these, and those that its files have besides.

        `added` is what tasks gained after their first trials, which trials from before show too; `snapshot`, with all columns
        of the trials, is how another has seen the store; tags are not read then.
        """
        self.store, self.columns, self._added = store, columns, added or nothing_added
        self._broken: set[str] = set()
        self._scope: tuple[str, frozenset[str]] | None = None
        self._membership: Membership | None = None
        self._in_memory: Mapping[str, pa.Table] = {}
        """Tables that are asked in place of files."""
        self._cache = SnapshotCache(columns=TRIALS.names)
        self._has_tags = snapshot is None
        if snapshot is None:
            self.refresh()
        else:
            self._reset(snapshot)

    @property
    def problems(self) -> list[Problem]:
        """Store that are not what they should be; nothing in them is counted."""
        return self.snapshot.problems

    def refresh(self) -> Self:
        """See what has been committed since, and return self."""
        self._reset(take_snapshot(self.store, ignore=self._broken, cache=self._cache))
        return self

    def for_sweep(self, sweep: str) -> Self:
        """Return the same store with the trials of one sweep alone, as its newest launch asks for them.

        Raises:
            QueryError: no committed trial belongs to such a sweep.
        """
        known = self.membership().of_sweep
        if sweep not in known:
            there = ", ".join(sorted(known)) or "none yet"
            raise QueryError(f"no committed trial of {self.store.url} belongs to a sweep {sweep!r}; there are: {there}")
        return self.only(known[sweep], sweep)

    of = old_method("Results", "of")

    def only(self, trial_ids: Iterable[str], sweep: str) -> Self:
        """Return the same store with some trials alone, under the name of a sweep."""
        scoped = copy(self)
        scoped._reset(self.snapshot)
        scoped._scope = (sweep, frozenset(trial_ids))
        return scoped

    def without(self, rows: Set[tuple[str, str]]) -> Self:
        """Return the same store without some (trial, attempt): no file is read in which all others are."""
        later = copy(self)
        kept = [source_without(source, rows) for source in self.snapshot.sources]
        later._reset(replace(self.snapshot, sources=[source for source in kept if source.trials.num_rows]))
        return later

    def in_memory(self, trial_ids: Iterable[str], without: Collection[str] = ()) -> Self:
        """Return the same results with the metrics and curves of these trials read once: for many questions of the same rows.

        No query knows the columns `without`. Trials of other sweeps keep their rows of `trials`, and have no measurements.

        Raises:
            QueryError: the store cannot be read.
        """
        import pyarrow.compute as pc  # 40 ms that a single query does not need

        wanted = pa.array(sorted(set(trial_ids)), pa.string())
        tables = {}
        for table in ("metrics", "curves"):
            names = self.sql(f"select * from {table} limit 0").columns
            chosen = ", ".join(quoted(name) for name in names if name not in without)
            rows = self.sql(f"select {chosen} from {table}").to_arrow_table()
            tables[table] = rows.filter(pc.is_in(rows["trial_id"], value_set=wanted))
        loaded = copy(self)  # after both were read: a compaction meanwhile has moved the snapshot on
        loaded._in_memory = tables
        return loaded

    def membership(self) -> Membership:
        """Return which committed trials belong to which sweep."""
        if self._membership is None:
            self._membership = read_membership(self.store, self.snapshot)
        return self._membership

    def sql(
        self, query: str, *, lazy: bool = False, memory_gb: float | None = None, timeout_s: float | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation (.df(), .arrow(), .fetchall()) over the views.

        It is computed here, once; files that turn out to be damaged are left out and named in `problems`. With `lazy`
        it is computed when it is read, and read as it is computed (.fetch_record_batch()): for what memory cannot hold.
        DuckDB takes at most `memory_gb`, half of the machine's memory without it, and `timeout_s`, which `lazy` does without.

        Raises:
            QueryError: the query is not understood, tries to do anything but read the views, or takes more than it may.
        """
        require_characters(query)
        if lazy:
            return self._relation(query, memory_gb=memory_gb)
        for _ in range(MAX_SCANS):
            connection = database(os.getpid(), memory_gb).cursor()
            try:
                with query_timeout(connection, timeout_s):
                    return self._relation(query, connection).materialize()
            except duckdb.InterruptException:
                if timeout_s is None:
                    raise
                more = "allow more (--timeout-seconds, or timeout_s in Python)"
                raise QueryError(f"the query took longer than {timeout_s:g} s and was ended; {more}") from None
            except duckdb.OutOfMemoryException as error:
                more = "allow more (--memory-gb, or memory_gb in Python), or ask for less at once"
                raise QueryMemoryError(
                    f"the query takes more memory than it may ({first_line(error)}); {more}"
                ) from None
            except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.DataError) as error:
                hint = (
                    renamed_hint(str(error), query, self.column_names(query))
                    or elsewhere_hint(str(error), self.column_names("from trials"))
                    or candidates(error)
                )
                raise QueryError(f"{first_line(error)}{hint}; views: {', '.join(VIEWS)}") from None
            except (pa.ArrowException, OSError, duckdb.Error) as error:
                failed = first_line(error)
            if not self._rescan(query):
                break
        raise QueryError(failed)

    def features(self, trial_id: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels [N], features [N, d]) of one trial at one layer, reading that layer alone.

        Raises:
            KeyError: the trial has no features there (its sweep asked for none, or it is not committed).
        """
        import numpy as np

        index = self.snapshot.commit_index.get(trial_id)
        if index is not None:
            found = list(self._layer_of(self.snapshot.sources[index], layer, trial_id))
            if found:
                return np.concatenate([labels for _, labels, _ in found]), np.concatenate([f for _, _, f in found])
        raise KeyError(
            f"no features of trial {trial_id!r} at layer {layer} in {self.store.url}; a task keeps them that returns a table "
            "`features`: those that come with depthrate where the sweep says `features: all` (or class_means, sample:<n>)"
        )

    def iter_features(self, layer: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield (trial_id, labels [N], features [N, d]) of every trial that has features at a layer, reading it alone."""
        for source in self.snapshot.sources:
            for found in self._layer_of(source, layer):
                if self._scope is None or found[0] in self._scope[1]:
                    yield found

    def _layer_of(
        self, source: VisibleCommit, layer: int, trial_id: str | None = None
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        columns = (source.trials[name].to_pylist() for name in ("trial_id", "attempt_id"))
        counting = {trial: attempt for trial, attempt in zip(*columns, strict=True) if trial_id in (None, trial)}
        for file in source.files.get("features", ()):
            yield from read_layer(self.store, file, layer, counting)

    def _rescan(self, query: str) -> bool:
        """See why a query could not read a file: replaced by a compaction, or damaged; False if neither is the case."""
        named = [file for table in self._tables(query) for file in self.snapshot.files(table)]
        then = self.snapshot
        self.refresh()
        if then.listing != self.snapshot.listing:
            self._pin_snapshot(then)
        if {source.path for source in then.sources} != {source.path for source in self.snapshot.sources}:
            return True
        broken = find_broken_files(self.store, named)
        self._broken.update(broken)
        if broken:
            self.refresh()
        return bool(broken)

    def _pin_snapshot(self, then: Snapshot) -> None:
        """Leave out what was committed since another snapshot; where some of that is gone, say that the store moved on."""
        counted, counts = _rows_of(then), _rows_of(self.snapshot)
        gone, since = counted - counts, counts - counted
        if gone:
            trial_ids = {trial_id for trial_id, _ in gone}
            since = {row for row in since if row[0] not in trial_ids}  # another attempt has them by now
            what = (
                f"the store has moved on since it was opened: {len(gone)} of {len(counted)} trials are gone or damaged, and "
                "from here on all answers are without them; ask again what was asked before"
            )
            self.snapshot.problems.append(Problem(self.store.url, what))
            log.warning("%s: %s", self.store.url, what)
        if since:  # not even then: a query on a store where trials come and go would never find all that it has seen
            kept = [source_without(source, since) for source in self.snapshot.sources]
            self._reset(replace(self.snapshot, sources=[source for source in kept if source.trials.num_rows]))

    def column_names(self, query: str) -> list[str]:
        """Return the columns of the views that a query names; none where they cannot be read."""
        try:
            named = [name for name in named_views(query) if name != "features"]
            return [column for name in named for column in self._relation(f"select * from {name} limit 0").columns]
        except (pa.ArrowException, OSError, duckdb.Error):
            return []

    def _tables(self, query: str) -> set[str]:
        """Return the tables whose files a query reads."""
        named = set(named_views(query))
        return (named & set(DATA_TABLES)) | ({"metrics", "curves"} if "results" in named else set())

    def with_removed(self) -> Self:
        """Return the same store with the results that `trials rm` removed and no compaction has taken away."""
        whole = copy(self)
        removals = self.snapshot.removals.removals
        whole._broken = self._broken | {removal_path(r.removal_id) for r in removals if r.kind is RemovalKind.TRIALS}
        return whole.refresh()

    def _reset(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._trials: pa.Table | None = None
        self._membership = None

    def _trials_table(self) -> pa.Table:
        if self._trials is None:
            trials = self.snapshot.trials
            if self._scope is not None:
                sweep, ids = self._scope
                trials = trials.filter(pa.array([t in ids for t in trials["trial_id"].to_pylist()], pa.bool_()))
                trials = with_sweep(trials, pa.array([sweep] * trials.num_rows, pa.string()))
            tags = read_tags(self.store) if self._has_tags else {}
            ids, texts = trials["trial_id"].to_pylist(), pa.list_(pa.string())
            # pa.array imports pandas
            of_trial = pa.array([tags.get(each) for each in ids], texts) if tags else pa.nulls(len(ids), texts)
            trials = with_parameter_columns(trials, self._added)
            if "tags" not in map(str.casefold, trials.column_names):  # a parameter of that name is older
                trials = trials.append_column("tags", of_trial)
            self._trials = trials
        return self._trials

    def parameter_names(self) -> list[str]:
        """Return the columns of the view `trials` that are parameters."""
        return [name for name in self._trials_table().column_names[len(TRIALS) :] if name.casefold() != "tags"]

    def _relation(
        self, query: str, connection: duckdb.DuckDBPyConnection | None = None, memory_gb: float | None = None
    ) -> duckdb.DuckDBPyRelation:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in (
            duckdb.StatementType.SELECT,
            duckdb.StatementType.EXPLAIN,
        ):
            raise QueryError("give one SELECT; the store is read-only")
        # A connection for each query, whose views are its own: one with an unread result refuses the next query.
        connection = database(os.getpid(), memory_gb).cursor() if connection is None else connection
        if asks_for_tables(query):
            rows = ", ".join(f"('{name}', '{row}')" for name, row in VIEWS.items())
            return connection.sql(f'select * from (values {rows}) as views("view", "a row is")')
        self._create_views(connection, named_views(query), set(), query)
        return connection.sql(query)

    def _create_views(
        self, connection: duckdb.DuckDBPyConnection, names: Iterable[str], created: set[str], query: str
    ) -> None:
        """Create the views a query names and those they rest on: opening the others would cost start-up time."""
        for name in names:
            if name in created:
                continue
            created.add(name)
            if name == "trials":
                trials = self._trials_table()
                is_many = self._scope is None and names_sweep(query)
                connection.register("trials", self.membership().table(trials) if is_many else trials)
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
                connection.register("attempts", self._attempts())

    def _create_table_view(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        """Create the view of a table: all rows of most files, and of the others those of the trials that count there."""
        sources = self.snapshot.sources
        whole = [index for index, source in enumerate(sources) if source.is_fully_visible]
        rest = [index for index, source in enumerate(sources) if not source.is_fully_visible]
        # an attempt's name tells its rows apart in many files at once, but not in two parts of its own, which hold the
        # same trial where the answer to a commit was lost; and compactions may hold copies of the same rows
        partial = [[index] for index in rest if sources[index].manifest is not None]
        parts_of = Counter[str]()
        loose: dict[int, list[int]] = {}
        for index in (index for index in rest if sources[index].manifest is None):
            attempt_id = attempt_of_path(sources[index].path)
            loose.setdefault(parts_of[attempt_id], []).append(index)
            parts_of[attempt_id] += 1
        partial += loose.values()
        connection.register(f"whole_{name}", self._dataset(name, whole))
        parts = [f"select * from whole_{name}"]
        for index, group in enumerate(group for group in partial if group):
            counting = pa.concat_tables([sources[i].trials.select(["trial_id", "attempt_id"]) for i in group])
            connection.register(f"part_{name}_{index}", self._dataset(name, group))
            connection.register(f"counting_{name}_{index}", counting)
            using = f"semi join counting_{name}_{index} using (trial_id, attempt_id)"
            parts.append(f"select * from part_{name}_{index} {using}")
        rows = " union all ".join(parts)
        if self._scope is not None:
            connection.register("scope", pa.table({"trial_id": pa.array(sorted(self._scope[1]), pa.string())}))
            rows = f"select * from ({rows}) semi join scope using (trial_id)"
        connection.execute(f"create temp view {name} as {rows}")

    def _dataset(self, name: str, sources: list[int]) -> Any:
        """Return a table's files as an Arrow dataset with a known schema: opening it reads no footer."""
        schema = pa.schema([*self.columns.schemas[name], *self._own_columns(name).items()])
        if not any(self.snapshot.sources[index].files.get(name) for index in sources):
            return pa.Table.from_batches([], schema)
        from depthrate.storage.query.scan import TableDataset  # imports pandas, which trials and fits alone do not need

        return TableDataset.of(self.store, self.snapshot, name, sources, schema)

    def _own_columns(self, name: str) -> dict[str, pa.DataType]:
        """Return the columns of a table beyond the standard ones: those of the files, then those declared that none has yet.

        One with two types in two tasks is left out and reported.
        """
        types: dict[str, set[str]] = {}
        for file in self.snapshot.files(name):
            for column, text in file.own_columns.items():
                types.setdefault(column, set()).add(text)
        if not all(file.names_all for file in self.snapshot.files(name)):
            for column, kind in self.columns.former_types(name).items():
                types.setdefault(column, set()).add(str(kind))
        for column, texts in types.items():
            problem = Problem(
                f"{name}.{column}",
                f"has the types {sorted(texts)} in different tasks; depthrate verify --repair renames one of them",
            )
            if len(texts) > 1 and problem not in self.problems:
                self.problems.append(problem)
        standard = self.columns.schemas[name].names  # a later version may have made a user's column its own
        found = {c: OWN_TYPES[min(texts)] for c, texts in types.items() if len(texts) == 1 and c not in standard}
        found |= {c: kind for c, kind in self.columns.own_types(name).items() if c not in types}
        return self._nameable(name, found, standard)

    def _nameable(self, table: str, found: dict[str, pa.DataType], standard: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the columns that SQL can name apart, as all can that are written today."""
        known = {column.casefold() for column in standard}
        kept = {}
        for column, kind in found.items():
            if not column or column.casefold() in known:
                reason = "is no name in SQL, or that of another column; it is left out: rename it in the task"
                problem = Problem(f"{table}.{column!r:.80}", reason)
                self.problems.extend([problem] if problem not in self.problems else [])
                continue
            known.add(column.casefold())
            kept[column] = kind
        return kept

    def _results_view(self, query: str) -> str:
        parameters, always_last = self.parameter_names(), self.columns.always_last
        standard = {table: self.columns.schemas[table].names for table in MEASURED_TABLES}
        metrics = [n for n in standard["metrics"] if n not in ("trial_id", "attempt_id", "is_last")]
        curves = [n for n in standard["curves"] if n not in standard["metrics"]]
        metrics += [
            n for n, kind in self._own_columns("metrics").items() if n not in always_last or kind == pa.float64()
        ]
        custom = list(self._own_columns("curves"))
        in_memory = {name: table.column_names for name, table in self._in_memory.items()}
        metrics = [name for name in metrics if name in in_memory.get("metrics", metrics)]
        curves, custom = ([n for n in names if n in in_memory.get("curves", names)] for names in (curves, custom))
        complete = self.columns.complete
        return results_view(parameters, metrics, curves, custom, query, always_last=always_last, complete=complete)

    def _fits(self) -> pa.Table:
        tables = [pa.Table.from_batches([], FITS)]
        for path in self.store.list("fits"):
            try:
                tables.append(fits_of(self.store.read(path)))
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                self.problems.append(Problem(path, f"cannot be read ({first_line(error)}); fit the sweep again"))
        fits = pa.concat_tables(tables)
        if self._scope is None:
            return fits
        return fits.filter(pa.array([sweep == self._scope[0] for sweep in fits["sweep"].to_pylist()], pa.bool_()))

    def _attempts(self) -> pa.Table:
        records = read_records(self.store, self.snapshot)
        return pa.Table.from_pylist(
            [{name: record.get(name) for name in ATTEMPTS.names} for record in records], ATTEMPTS
        )
