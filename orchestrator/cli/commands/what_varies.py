"""Notes on queries that aggregate over trials with different parameters."""

from depthrate.orchestrator.console.tables import listed
from depthrate.storage.catalog.specs import read_specs
from depthrate.storage.files.paths import sweep_of_path
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
    constant = results.constant_parameters()
    names = [n for n in results.parameter_names() if n.removeprefix("param_") != "seed" and n not in constant]
    names = [name for name in names if not {name.casefold(), name.removeprefix("param_").casefold()} & words]
    if not names:
        return None
    varies = "min({0}) is distinct from max({0}) or count({0}) between 1 and count(*) - 1"
    terms = ", ".join(varies.format(quoted(name)) for name in names)
    (row,) = results.sql(f"select {terms} from trials").fetchall()
    varying = [name for name, is_varying in zip(names, row, strict=True) if is_varying]
    if not varying:
        return None
    specs, ran = list(read_specs(results.store)), {sweep_of_path(source.path) for source in results.snapshot.sources}
    is_one = len(specs) == 1 and ran <= {spec.sweep for spec in specs}
    sweeps = [] if is_one else sorted(results.membership().of_sweep)
    text = f"this aggregates trials that differ in {listed(varying, MAX_VALUES_SHOWN)}"
    if len(sweeps) > 1:
        text += f". Limit the query to one of {len(sweeps)} sweeps: --sweep {sweeps[0]}, or where sweep = '{sweeps[0]}'"
    return text
