"""Notes on queries that aggregate over trials with different parameters."""

from __future__ import annotations

from depthrate.orchestrator.console.tables import listed
from depthrate.storage.query.results import Results
from depthrate.storage.query.views import named_views, names_in
from depthrate.storage.tables.custom_columns import quoted

_AGGREGATES = {"avg", "mean", "sum", "median", "stddev", "min", "max", "quantile", "quantile_cont", "mode", "var_samp"}
_OF_TRIALS = {"trials", "metrics", "curves", "results"}
MAX_VALUES_SHOWN = 6


def what_varies(results: Results, query: str) -> str | None:
    """Return a note on parameters that vary in the store but do not occur in an aggregating query, or None.

    Seeds are meant to be aggregated, and queries with trial_id or sweep are explicit, so these give no note.
    """
    words = names_in(query)
    if not _OF_TRIALS.intersection(named_views(query)) or not _AGGREGATES & words or words & {"trial_id", "sweep"}:
        return None
    names = [name for name in results.parameter_names() if name.removeprefix("param_") != "seed"]
    names = [name for name in names if not {name.casefold(), name.removeprefix("param_").casefold()} & words]
    if not names:
        return None
    counts = ", ".join(f"count(distinct coalesce({quoted(name)}::varchar, 'null'))" for name in names)
    (row,) = results.sql(f"select {counts} from trials").fetchall()
    varying = [name for name, count in zip(names, row, strict=True) if count > 1]
    if not varying:
        return None
    sweeps = sorted(results.membership().of_sweep)
    text = f"this aggregates trials that differ in {listed(varying, MAX_VALUES_SHOWN)}"
    if len(sweeps) > 1:
        text += f". Limit the query to one of {len(sweeps)} sweeps: --sweep {sweeps[0]}, or where sweep = '{sweeps[0]}'"
    return text
