"""Whether a search can run, as far as that can be told before anything starts."""

from __future__ import annotations

from depthrate.orchestrator.analysis.columns import ALWAYS_LAST, result_columns
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.studies import make_studies
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.metric import scalars
from depthrate.tasks.parameters import format_names, nearest


def check_search(checked: CheckedSweep, source: DataSource) -> None:
    """Check as far as possible that a search can run; nothing to do without one.

    Raises:
        QueryError: the objective is not an SQL expression, or names a column that is not there.
        SweepError: the search and the rest of the sweep do not fit together.
        DatasetError: what its trials read is not there.
    """
    search = checked.sweep.search
    if search is None:
        return
    from depthrate.storage.query.sql_checks import QueryError, check_expression  # here: most sweeps have no search

    studies = make_studies(checked.sweep, checked.task)
    checked.task.check_data([trial.params for study in studies for trial in study.first_trials()], source)
    columns, measured = result_columns(checked.task), format_names(scalars(checked.task.measurements))
    for text in search.objective:
        if text in ALWAYS_LAST or (text in checked.task.schema and f"last_{text}" in (columns or ())):
            raise SweepError(
                f"search.objective is {text!r}, in results a parameter's name; what is measured is last_{text}: give that"
            )
        try:
            check_expression(text, columns)
        except QueryError as error:
            raise QueryError(
                f"{error}" + (f" (task {checked.task.name!r} measures {measured})" if measured else "")
            ) from None
    by_step = scalars(checked.task.measurable, "step")
    if search.prune is not None and by_step and search.prune.metric not in by_step:
        wrong = f"search.prune.metric is {search.prune.metric!r}{nearest(search.prune.metric, by_step)}"
        raise SweepError(f"{wrong}; task {checked.task.name!r} reports {', '.join(by_step)}")
