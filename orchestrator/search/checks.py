"""Check before a launch whether a search can run."""

from depthrate.orchestrator.analysis.columns import ALWAYS_LAST, result_columns
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.studies import make_studies
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.metric import scalars
from depthrate.tasks.parameters import format_names, nearest


def check_search(checked: CheckedSweep, source: DataSource) -> None:
    """Check that a sweep's search, if any, can run.

    Raises:
        QueryError: If the objective is not an SQL expression, or names an unknown column.
        SweepError: If the search is not compatible with the rest of the sweep.
        DatasetError: If data of its trials are missing.
    """
    search = checked.sweep.search
    if search is None:
        return
    from depthrate.storage.query.sql_checks import QueryError, check_expression  # needed by few sweeps

    studies = make_studies(checked.sweep, checked.task)
    checked.task.check_data([trial.params for study in studies for trial in study.first_trials()], source)
    columns, measured = result_columns(checked.task), format_names(scalars(checked.task.measurements))
    for text in search.objective:
        if text in ALWAYS_LAST or (text in checked.task.schema and f"last_{text}" in (columns or ())):
            raise SweepError(f"search.objective is {text!r}, which is a parameter. For the metric write last_{text}.")
        try:
            check_expression(text, columns)
        except QueryError as error:
            raise QueryError(
                f"{error}" + (f" (task {checked.task.name!r} measures {measured})" if measured else "")
            ) from None
    by_step = scalars(checked.task.measurable, "step")
    if search.prune is not None and by_step and search.prune.metric not in by_step:
        raise SweepError(
            f"search.prune.metric is {search.prune.metric!r}, expected a metric that task {checked.task.name!r} reports: "
            f"{', '.join(by_step)}{nearest(search.prune.metric, by_step)}"
        )
