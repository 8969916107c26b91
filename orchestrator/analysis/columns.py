"""Columns of the metrics that tasks declare, for the store, the checks and the report. Storage itself names no metric."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial

from depthrate.storage.tables.custom_columns import check_names
from depthrate.storage.tables.schema import TRIALS, Columns
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import Metric, Per, by_name
from depthrate.tasks.registry import builtin_task_names, find_schema
from depthrate.tasks.supervised.metrics import core_measurements

_SQL_TYPES = {"scalar": "double", "int": "bigint", "float": "double", "str": "varchar", "bool": "boolean"}
TABLES: dict[Per, str] = {"layer": "metrics", "step": "curves"}
"""Table with the column of a metric per layer or per step."""
ALWAYS_LAST = ("loss", "lr")
"""Curves named like a parameter of depthrate's tasks. They are last_loss and last_lr in `results` of every store.
"""


@cache
def builtin_columns() -> Columns:
    """Return the columns that every file has: the columns of the supervised tasks."""
    return Columns(
        _tables(core_measurements()),
        always_last=ALWAYS_LAST,
        complete=builtin_task_names(),
        nulls=_nulls,
    )


def _nulls(name: str, given: Task | None = None) -> dict[str, str]:
    """Return `Columns.nulls` of a task."""
    schema = given.schema if given is not None and given.name == name else find_schema(name)
    return {key: parameter.null for key, parameter in schema.items() if parameter.null}


def columns_of(task: Task) -> Columns:
    """Return the built-in columns and the task's columns.

    Raises:
        TableError: The task declares a column that has another meaning, or with an invalid name.
    """
    columns = replace(
        builtin_columns(),
        own=_tables(task.measurements),
        nulls=partial(_nulls, given=task),
        parameters={name: parameter.kind for name, parameter in task.schema.items()},
    )
    for table, own in columns.own.items():
        check_names(table, own, columns.schemas[table].names)
    return columns


def known_measurements(task: Task) -> dict[str, Metric]:
    """Map names to metrics: the task's metrics, then the core metrics, whose columns the task may fill too."""
    declared = by_name(task.measurements)
    return declared | {other.name: other for other in core_measurements() if other.name not in declared}


def columns_to_skip(task: Task, requested: Iterable[str] = ()) -> set[str]:
    """Return the columns of `metrics` that are lists or that only other tasks fill, except the requested ones.

    A task that declares no metrics may fill any column.
    """
    known = [measurement for measurement in known_measurements(task).values() if TABLES[measurement.per] == "metrics"]
    filled = {metric.name for metric in task.measurements or known}
    return {metric.name for metric in known if metric.kind != "scalar" or metric.name not in filled} - set(requested)


def result_columns(task: Task) -> dict[str, str] | None:
    """Return the columns of `results` with their SQL types, or None if the task declares no metrics."""
    if not task.measurements:
        return None
    columns = {"step": "bigint", "layer": "bigint", "wall_s": "double", "committed_at": "timestamptz"}
    columns |= {
        name: "varchar" for name in ("trial_id", "sweep", "task", "status", "judgement", "split", "device", "host")
    }
    standard = {measurement.name.casefold() for measurement in core_measurements()}  # SQL ignores case
    parameters = {name.casefold() for name in task.schema}
    for measurement in task.measurable:  # the view prefixes a metric that shares its name with a parameter
        name, folded = measurement.name, measurement.name.casefold()
        is_hidden = name in ALWAYS_LAST or (measurement.per == "step" and folded in parameters - standard)
        columns[f"last_{name}" if is_hidden else name] = "double" if measurement.kind == "scalar" else "double[]"
    taken = {name.casefold() for name in (*columns, *TRIALS.names)}
    for name, parameter in task.schema.items():
        is_taken = name.casefold() in taken
        taken.add(name.casefold())
        columns[f"param_{name}" if is_taken else name] = _SQL_TYPES.get(parameter.kind, "double[]")
    return columns


def _tables(measurements: Iterable[Metric]) -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for measurement in measurements:
        tables.setdefault(TABLES[measurement.per], {})[measurement.name] = measurement.kind
    return tables
