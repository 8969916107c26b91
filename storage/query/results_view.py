"""The view `results`: one row per trial, with its parameters and its final metrics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from depthrate.storage.tables.custom_columns import quoted

_FIRST = ("trial_id", "sweep", "task", "status")
_LAST = ("wall_s", "device", "host", "committed_at", "tags")


_MEASURED = (
    "select * from metrics where is_last qualify row_number() over "
    "(partition by trial_id order by step desc, split <> 'train', split, layer desc) = 1"
)


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

    It has the parameters, and the metrics at a trial's last step and last layer, on the training split. Curves are
    included if the query may name one.

    A curve without a value at that step has its last logged value: a custom loop may log its steps 0 to n - 1 and
    measure after n, or measure nothing. For tasks in `complete` that applies only if no row exists at that step. For
    other tasks the last values of all curves are queried, which takes longer than the rest of a query.

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
    join = ""
    if _may_name(query, curves):
        logged = [quoted(name) for name in curves]
        final_names = [_named(name, "last", hidden) for name in curves]
        metric_terms = [f", m.{name}" if name in also_measured else "" for name in logged]
        terms = zip(logged, metric_terms, final_names, strict=True)
        columns += [f"coalesce(c.{name}, l.{name}{term}) as {final_name}" for name, term, final_name in terms]
        last_logged = ", ".join(f"arg_max({name}, step) as {name}" for name in logged)
        join = (
            "left join curves c on c.trial_id = t.trial_id and c.step = m.step and c.split = m.split "
            f"left join (select trial_id, split, {last_logged} from curves semi join ({_trials_to_fill(complete)}) "
            "using (trial_id) group by all) l "
            "on l.trial_id = t.trial_id and l.split = coalesce(m.split, 'train') and t.status = 'ok'"
        )
    columns += [f"t.{name}" for name in _LAST]
    return (
        f"create temp view results as select {', '.join(columns)} from trials t "
        f"left join ({_MEASURED}) m on m.trial_id = t.trial_id {join}"
    )


def _trials_to_fill(complete: Iterable[str]) -> str:
    """Return the SQL of the trials whose curves may have no value at the measured step, but an earlier one."""
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
    """Return the name of a column in the view, given the names already taken."""
    return quoted(f"{prefix}_{name}" if _is_in(name, taken) else name)


def _may_name(query: str, columns: Iterable[str]) -> bool:
    """Return whether a query can refer to one of these columns of `results`, by its name, a star, or the whole row.

    If it cannot, the files of the curves need not be opened: DuckDB would read them for the join.
    """
    text = query.lower()
    by_name = any(name.lower() in text for name in columns)
    names = [
        "results",
        *re.findall(r"\bresults\s+(?:as\s+)?(\w+)", text),
    ]  # names of the whole row: the view's and its aliases
    names_row = any(len(re.findall(rf"\b{name}\b(?!\s*\.)", text)) > 1 for name in names)
    # `from results` alone selects all columns, and so do describe and summarize
    selects_all = (
        "*" in text or "columns" in text or re.search(r"\b(describe|summarize)\b|^(?!.*\bselect\b)", text, re.DOTALL)
    )
    return by_name or names_row or bool(selects_all)
