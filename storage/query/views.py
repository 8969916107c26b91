"""The views of a snapshot: each table with its visible rows, `results` and `live`, which join tables, and small tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from depthrate.storage.attempts.live_curves import LivePack, LiveReader, live_rows, newest_live_rows
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.fits import parse_fits
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.catalog.tags import read_annotations
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.commits.visible_commits import Problem, first_line
from depthrate.storage.files.paths import DATA_TABLES, attempt_of_path
from depthrate.storage.files.store import Store
from depthrate.storage.query.lazy import lazy
from depthrate.storage.query.membership import Membership, read_membership
from depthrate.storage.query.sql_checks import named_views, names_sweep
from depthrate.storage.tables.custom_columns import CUSTOM_TYPES, quoted
from depthrate.storage.tables.parameters import AddedParameters, as_type, column_of, parameter_columns
from depthrate.storage.tables.schema import ATTEMPTS, FITS, MEASURED_TABLES, Columns

if TYPE_CHECKING:
    from depthrate.storage.query.trials_table import TrialsTable

_FIRST = ("trial_id", "sweep", "task", "status")
_LAST = ("judgement", "wall_s", "device", "host", "committed_at", "tags")
_MEASURED = (
    "select * from metrics where is_last qualify row_number() over "
    "(partition by trial_id order by step desc, split <> 'train', split, layer desc) = 1"
)


@dataclass
class Views:
    """The views of a snapshot, or of one sweep's trials in it."""

    store: Store
    snapshot: Snapshot
    columns: Columns
    added: AddedParameters
    scope: tuple[str, frozenset[str]] | None = None
    """A sweep and its trials, which are the only visible ones."""
    in_memory: Mapping[str, pa.Table] = field(default_factory=dict)
    """Tables queried instead of files."""
    has_tags: bool = True
    judge: Callable[[], Mapping[str, str]] = dict
    """Returns trial -> judgement. Called only for queries that read it, since it reads all training curves."""

    def create(self, connection: duckdb.DuckDBPyConnection, query: str) -> None:
        """Create the views that a query names and the views they depend on. Opening all views would take longer."""
        named = set(named_views(query))
        if "results" in named:
            named |= {"trials", "metrics", "curves"}
        for name in named - {"results"}:
            if name == "trials":
                self._create_trials(connection, with_members=self.scope is None and names_sweep(query))
            elif name in self.in_memory:
                connection.register(name, self.in_memory[name])
            elif name in DATA_TABLES:
                self._create_table(connection, name)
            elif name == "fits":
                connection.register("fits", self._fits())
            elif name == "live":
                packs = read_live(self.store, self.snapshot.commit_index.keys(), self.scope)
                of_sweeps = [name for spec in newest_specs(self.store).values() for name in spec.parameter_names()]
                create_live_view(connection, packs, self.columns, [*self.parameter_names(), *of_sweeps])
            elif name == "attempts":
                records = read_records(self.store, self.snapshot)
                connection.register("attempts", pa.Table.from_pylist(records, ATTEMPTS))
        if "results" in named:
            connection.execute(self._results())

    @lazy
    def membership(self) -> Membership:
        """The sweeps' committed trials."""
        return read_membership(self.store, self.snapshot)

    @lazy
    def trials(self) -> TrialsTable:
        """The visible trials."""
        from depthrate.storage.query.trials_table import TrialsTable  # imports pandas, unless a command prevents it

        of_scope = None if self.scope is None else self.scope[1]
        return TrialsTable.of_sources(self.store, self.snapshot.sources, self.added, of_scope, self.judge)

    def parameter_names(self) -> list[str]:
        """Return the columns of the view `trials` that are parameters."""
        return list(self.trials.parameters.values())

    @lazy
    def _tags(self) -> Mapping[str, list[str]]:
        return read_annotations(self.store).tags() if self.has_tags else {}

    def _create_trials(self, connection: duckdb.DuckDBPyConnection, *, with_members: bool) -> None:
        """Create the view of trials. With members, each trial appears once per sweep that it belongs to."""
        connection.register("all_trials", self.trials)
        replaced = [f"{term} as {quoted(name)}" for name, term in self._values_used().items()]
        rows, tags = "all_trials", ""
        if with_members:
            pairs = [(trial_id, sweep) for sweep, ids in self.membership.of_sweep.items() for trial_id in ids]
            members = {"trial_id": [trial_id for trial_id, _ in pairs], "of_sweep": [sweep for _, sweep in pairs]}
            connection.register("members", pa.table({n: pa.array(v, pa.string()) for n, v in members.items()}))
            rows = "(select * exclude (of_sweep) replace (of_sweep as sweep) from all_trials join members using (trial_id))"
        elif self.scope is not None:
            replaced.append(f"'{self.scope[0]}' as sweep")
        if "tags" not in map(str.casefold, self.trials.schema.names):  # a parameter may have this name
            tags = ", null::varchar[] as tags"
            if self._tags:
                tags, lists = "", pa.array(list(self._tags.values()), pa.list_(pa.string()))
                connection.register("all_tags", pa.table({"trial_id": pa.array(list(self._tags)), "tags": lists}))
                # grouped, so that DuckDB leaves it out of queries without tags
                grouped = "select trial_id, first(tags) as tags from all_tags group by trial_id"
                rows += f" left join ({grouped}) using (trial_id)"
        changed = f" replace ({', '.join(replaced)})" if replaced else ""
        connection.execute(f"create temp view judged_trials as select *{changed}{tags} from {rows}")
        connection.execute("create temp view trials as select * exclude (judgement) from judged_trials")

    def _values_used(self) -> dict[str, str]:
        """Return column -> SQL of the parameters with a value that is used in place of null."""
        terms: dict[str, list[str]] = {}
        for task in self.trials.tasks:
            for name, text in self.columns.nulls(task).items():
                if (column := self.trials.parameters.get(column_of(name))) is not None:
                    terms.setdefault(column, []).append(f"when task = '{task}' then ({text})")
        used = {name: f"case {' '.join(part)} end" for name, part in terms.items()}
        return {
            name: term if name in self.trials.valueless else f"coalesce({quoted(name)}, {term})"
            for name, term in used.items()
            if name in self.trials.valueless or self.trials.schema.field(name).type != pa.string()
        }

    def _create_table(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        """Create the view of a table: all rows of most files, and only the rows of visible trials of the remaining files."""
        schema = pa.schema([*self.columns.schemas[name], *self._custom_columns(name).items()])
        sources = self.snapshot.sources
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
        if self.scope is not None and not self.snapshot.commit_index.keys() <= self.scope[1]:
            # only where it hides rows: the join may hold the whole table in memory
            connection.register("scope", pa.table({"trial_id": pa.array(sorted(self.scope[1]), pa.string())}))
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
        from depthrate.storage.query.scan import TableDataset  # imports pandas, unless a command prevents it

        return TableDataset.from_snapshot(self.store, self.snapshot, name, sources, schema)

    def _custom_columns(self, name: str) -> dict[str, pa.DataType]:
        """Return a table's columns beyond the standard ones: columns of the files, then declared columns that no file has yet.

        A column whose type differs between tasks, or whose name is not unique in SQL, is left out and reported.
        """
        types: dict[str, set[str]] = {}
        for file in self.snapshot.files(name):
            for column, type_name in file.own_columns.items():
                types.setdefault(column, set()).add(type_name)
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
        if problem not in self.snapshot.problems:
            self.snapshot.problems.append(problem)

    def _results(self) -> str:
        parameters, always_last = self.parameter_names(), self.columns.always_last
        standard = {table: self.columns.schemas[table].names for table in MEASURED_TABLES}
        metrics = [n for n in standard["metrics"] if n not in ("trial_id", "attempt_id", "is_last")]
        curves = [n for n in standard["curves"] if n not in standard["metrics"]]
        added = self._custom_columns("metrics").items()
        metrics += [n for n, kind in added if n not in always_last or kind == pa.float64()]
        custom = list(self._custom_columns("curves"))
        in_memory = {name: table.column_names for name, table in self.in_memory.items()}
        metrics = [name for name in metrics if name in in_memory.get("metrics", metrics)]
        curves, custom = ([n for n in names if n in in_memory.get("curves", names)] for names in (curves, custom))
        complete = self.columns.complete
        return results_view(parameters, metrics, curves, custom, always_last=always_last, complete=complete)

    def _fits(self) -> pa.Table:
        tables = [pa.Table.from_batches([], FITS)]
        for path in self.store.list("fits"):
            try:
                tables.append(parse_fits(self.store.read(path)))
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                self._report(Problem(path, f"cannot be read ({first_line(error)}). Fit the sweep again"))
        fits = pa.concat_tables(tables)
        fits = fits.append_column("split_by", fits["by"])  # `by` is a reserved word of SQL
        if self.scope is None:
            return fits
        return fits.filter(pa.array([sweep == self.scope[0] for sweep in fits["sweep"].to_pylist()], pa.bool_()))


def results_view(
    parameters: Sequence[str],
    metrics: Sequence[str],
    curves: Sequence[str],
    custom_curves: Sequence[str],
    *,
    always_last: Collection[str],
    complete: Iterable[str],
) -> str:
    """Return the SQL that creates the view.

    The view has the metrics at a trial's last step and last layer, on the training split, and the columns and parameters of the
    trials. The curves are joined last, as one group per trial, so that DuckDB leaves the join out of queries without them.

    If a curve has no value at that step, its last logged value is used: a custom loop may log its steps 0 to n - 1 and measure
    after n, or measure nothing. For tasks in `complete` this applies only if no row exists at that step. For other tasks the
    last values of all curves are queried, which takes longer than the rest of a query.

    The curves in `always_last` become last_<name> in every store, so that trials of other tasks do not change the
    meaning of a name. A metric with the same name, which a task measures instead of logging it, appears there too. A
    parameter named like another metric or another of the `curves` becomes param_<name>. One of the `custom_curves`
    named like a parameter becomes last_<name>.
    """
    also_measured = [quoted(name) for name in metrics if _is_in(name, always_last)]
    metrics = [name for name in metrics if not _is_in(name, (*_FIRST, *_LAST, *always_last))]
    taken = [*metrics, *(name for name in curves if not _is_in(name, always_last))]
    curves = [name for name in (*curves, *custom_curves) if not _is_in(name, (*metrics, *_FIRST, *_LAST))]
    hidden = [*always_last, *(name for name in custom_curves if _is_in(name, parameters))]
    columns = [f"t.{name}" for name in _FIRST]
    columns += [f"t.{quoted(name)} as {_named(name, 'param', taken)}" for name in parameters]
    columns += [f"m.{quoted(name)}" for name in metrics]
    logged = [quoted(name) for name in curves]
    for name, column in zip(curves, logged, strict=True):
        measured = f"coalesce(e.{column}, m.{column})" if column in also_measured else f"e.{column}"
        columns.append(f"{measured} as {_named(name, 'last', hidden)}")
    columns += [f"t.{name}" for name in _LAST]

    def listed(term: str) -> str:
        return ", ".join(f"{term.format(column)} as {column}" for column in logged)

    measured_at = (
        f"select trial_id, {listed('max({})')} from curves semi join ({_MEASURED}) using (trial_id, step, split)"
    )
    last = f"select trial_id, {listed('arg_max({}, step)')} from curves semi join ({_splits_to_fill(complete)}) using "
    return (
        f"create temp view results as select {', '.join(columns)} from judged_trials t "
        f"left join ({_MEASURED}) m on m.trial_id = t.trial_id "
        f"left join (select trial_id, {listed('max(coalesce(c.{0}, l.{0}))')} from ({measured_at} group by trial_id) c "
        f"full join ({last} (trial_id, split) group by trial_id) l using (trial_id) group by trial_id) e "
        "on e.trial_id = t.trial_id"
    )


def _splits_to_fill(complete: Iterable[str]) -> str:
    """Return the SQL of the trials whose curves may have no value at the measured step but a value at an earlier step."""
    tasks = ", ".join(f"'{task}'" for task in complete)
    return (
        f"select t.trial_id, coalesce(m.split, 'train') as split from trials t left join ({_MEASURED}) m using (trial_id) "
        f"where t.status = 'ok' and (not list_contains([{tasks}]::varchar[], coalesce(t.task, '')) or t.trial_id not in "
        f"(select m.trial_id from ({_MEASURED}) m semi join curves c using (trial_id, step, split)))"
    )


def _is_in(name: str, names: Iterable[str]) -> bool:
    """Return whether SQL, which ignores case, equates this with one of the names."""
    return name.casefold() in {name.casefold() for name in names}


def _named(name: str, prefix: str, taken: Sequence[str]) -> str:
    """Return the name of a column in the view, with a prefix if it is taken."""
    return quoted(f"{prefix}_{name}" if _is_in(name, taken) else name)


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
    columns_of_packs = {n: pa.chunked_array([v]) for n, v in parameter_columns(list(params.values()), {}).items()}
    parameters = {n: as_type(v, pa.string()) if pa.types.is_null(v.type) else v for n, v in columns_of_packs.items()}
    parameters |= {
        name: pa.chunked_array([pa.nulls(len(params), pa.float64())])
        for name in parameter_names
        if name not in parameters
    }
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
