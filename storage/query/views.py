"""The views of a store: which views a query names, and the SQL of `results` and `live`, which join other tables."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from functools import lru_cache

import duckdb
import pyarrow as pa

from depthrate.storage.attempts.live_curves import LivePack, LiveReader, live_rows, newest_live_rows
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.files.store import Store
from depthrate.storage.tables.custom_columns import quoted
from depthrate.storage.tables.parameters import parameter_columns
from depthrate.storage.tables.schema import Columns

VIEWS = {
    "trials": "trial, with one column per parameter",
    "metrics": "layer of a trial at a measured step",
    "curves": "step of a trial",
    "features": "stored feature of a sample or a class mean",
    "live": "logged step of an uncommitted trial, running or killed",
    "attempts": "attempt (one execution of a pack)",
    "fits": "model fitted to a curve",
    "results": "trial, with its parameters and its metrics at the last step and last layer",
}
"""View -> meaning of a row."""
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_MISSING = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')
_OBJECTS_TO_TEXT = re.compile(r"VARCHAR|convert string", re.IGNORECASE)
_WORD = re.compile(r'"?([A-Za-z_][A-Za-z0-9_]*)"?')
_FIRST = ("trial_id", "sweep", "task", "status")
_LAST = ("wall_s", "device", "host", "committed_at", "tags")


_MEASURED = (
    "select * from metrics where is_last qualify row_number() over "
    "(partition by trial_id order by step desc, split <> 'train', split, layer desc) = 1"
)


def named_views(query: str) -> list[str]:
    """Return the views that a query may read."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", query, re.IGNORECASE)]


def is_show_tables(query: str) -> bool:
    """Return whether a query lists the views."""
    return _SHOW_TABLES.fullmatch(" ".join(_tokens(query))) is not None


def renamed_hint(error: str, query: str, columns: Iterable[str]) -> str:
    """Return a hint with this view's names of columns that DuckDB's error reports as missing or of another type."""
    missing = _missing_column(error).casefold()
    known = {column.casefold(): column for column in columns}
    names = [missing] if missing else sorted(names_in(query) & known.keys()) if _OBJECTS_TO_TEXT.search(error) else []
    kinds = {"param_": "Parameter", "last_": "The last value of curve"}
    renamed = [(kind, name, known.get(prefix + name)) for name in names for prefix, kind in kinds.items()]
    return "".join(f" {kind} {name} is column {column} here." for kind, name, column in renamed if column)


def elsewhere_hint(error: str, of_trials: Iterable[str]) -> str:
    """Return a hint with the join that adds a column of `trials` that DuckDB's error reports as missing."""
    name = _missing_column(error).casefold()
    if name not in map(str.casefold, of_trials):
        return ""
    return f" {name} is a column of trials and results. Add `join trials using (trial_id)`."


def _missing_column(error: str) -> str:
    """Return the column that DuckDB's error reports as missing, or an empty str for other errors."""
    match = _MISSING.search(error)
    return (match[1] or match[2]) if match else ""


def names_sweep(query: str) -> bool:
    """Return whether a query names the column `sweep`, so that a trial appears once per sweep it belongs to."""
    return "sweep" in names_in(query)


def compared_sweeps(query: str) -> set[str]:
    """Return the strings with which a query compares the column `sweep`."""
    right = re.findall(
        r"""\bsweep"?\s*(?:==?|<>|!=|(?:not\s+)?in\s*\()\s*((?:'(?:[^']|'')*'[\s,]*)+)""", query, re.IGNORECASE
    )
    left = re.findall(r"""('(?:[^']|'')*')\s*(?:==?|<>|!=)\s*(?:\w+\.)?"?sweep\b""", query, re.IGNORECASE)
    return {text.replace("''", "'") for part in (*right, *left) for text in re.findall(r"'((?:[^']|'')*)'", part)}


def names_in(query: str) -> set[str]:
    """Return the words of a query that may be column names, in lower case."""
    return {match[1].casefold() for token in _tokens(query) if (match := _WORD.match(token))}


def _tokens(query: str) -> Iterator[str]:
    """Yield the tokens of a query, except comments and string literals."""
    encoded, tokens = query.encode(), duckdb.tokenize(query)  # positions are in bytes
    for (start, kind), (stop, _) in zip(tokens, [*tokens[1:], (len(encoded), None)], strict=True):
        if kind not in (duckdb.token_type.string_const, duckdb.token_type.comment):
            yield encoded[start:stop].decode(errors="replace").strip()


def results_view(
    parameters: Sequence[str],
    metrics: Sequence[str],
    curves: Sequence[str],
    custom_curves: Sequence[str],
    query: str,
    *,
    always_last: Collection[str],
    complete: Iterable[str],
) -> str:
    """Return the SQL that creates the view.

    The view has the metrics at a trial's last step and last layer, on the training split, and the columns and parameters of the
    trials that the query may name. Curves are included if the query may name one.

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
    columns += [f"t.{quoted(name)} as {_named(name, 'param', taken)}" for name in parameters if may_name(query, name)]
    columns += [f"m.{quoted(name)}" for name in metrics]
    join = ""
    if any(may_name(query, name) for name in curves):
        logged = [quoted(name) for name in curves]
        final_names = [_named(name, "last", hidden) for name in curves]
        metric_terms = [f", m.{name}" if name in also_measured else "" for name in logged]
        terms = zip(logged, metric_terms, final_names, strict=True)
        columns += [f"coalesce(c.{name}, l.{name}{term}) as {final_name}" for name, term, final_name in terms]
        last_logged = ", ".join(f"arg_max({name}, step) as {name}" for name in logged)
        join = (
            # reduced first, since the join holds its right side in memory
            f"left join (select * from curves semi join ({_MEASURED}) using (trial_id, step, split)) c "
            "on c.trial_id = t.trial_id and c.step = m.step and c.split = m.split "
            f"left join (select trial_id, split, {last_logged} from curves semi join ({_trials_to_fill(complete)}) "
            "using (trial_id) group by all) l "
            "on l.trial_id = t.trial_id and l.split = coalesce(m.split, 'train') and t.status = 'ok'"
        )
    columns += [f"t.{name}" for name in _LAST if may_name(query, name)]
    return (
        f"create temp view results as select {', '.join(columns)} from trials t "
        f"left join ({_MEASURED}) m on m.trial_id = t.trial_id {join}"
    )


def _trials_to_fill(complete: Iterable[str]) -> str:
    """Return the SQL of the trials whose curves may have no value at the measured step but a value at an earlier step."""
    tasks = ", ".join(f"'{task}'" for task in complete)
    return (
        f"select trial_id from trials where status = 'ok' and not list_contains([{tasks}]::varchar[], coalesce(task, '')) "
        f"union all select t.trial_id from trials t anti join (select m.trial_id from ({_MEASURED}) m "
        "semi join curves c on c.trial_id = m.trial_id and c.step = m.step and c.split = m.split) e "
        "on e.trial_id = t.trial_id where t.status = 'ok'"
    )


def _is_in(name: str, names: Iterable[str]) -> bool:
    """Return whether SQL, which ignores case, equates this with one of the names."""
    return name.casefold() in {name.casefold() for name in names}


def _named(name: str, prefix: str, taken: Sequence[str]) -> str:
    """Return the name of a column in the view, with a prefix if it is taken."""
    return quoted(f"{prefix}_{name}" if _is_in(name, taken) else name)


def may_name(query: str, name: str) -> bool:
    """Return whether a query can refer to this column of `trials` or `results`: by its name, a star, or the whole row.

    Columns to which it cannot refer need not be read, nor do files that contain only such columns.
    """
    is_plain = name.isascii() and '"' not in name  # otherwise SQL may write it in another way
    return not is_plain or name.lower() in query.lower() or _selects_all(query)


@lru_cache(maxsize=8)
def _selects_all(query: str) -> bool:
    """Return whether a query can refer to columns of `trials` or `results` without their names."""
    text = re.sub(r'"(trials|results)"', r"\1", " ".join(_tokens(query)).lower())
    text = re.sub(r"count \( \* \)|distinct from", "", text)
    # names of the whole row: the views' and their aliases
    aliases = re.findall(r"\b(?:trials|results)\b[\s)]+(?:as\s+)?\"?(\w+)|(\w+)\"?\s*:\s*(?:trials|results)\b", text)
    names = {"trials", "results", *(name for pair in aliases for name in pair if name)}
    names_row = any(len(re.findall(rf"\b{name}\b(?!\s*\.)", text)) > 1 for name in names)
    # `from results` alone selects all columns
    froms, selects = (text.split().count(word) for word in ("from", "select"))
    by_form = re.search(r"\*|columns|\b(describe|summarize|natural|table|pivot|unpivot)\b", text)
    by_place = re.search(r'\b(trials|results)"?\s+(as\s+)?"?(?!where\b)\w+"?\s*\(', text)  # from trials t(a, b)
    return names_row or froms > selects or selects == 0 or by_form is not None or by_place is not None


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
