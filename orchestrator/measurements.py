"""What tasks measure, as the store, the checks and the report need to know it: storage itself names no measurement."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from depthrate.storage.schema import Columns
from depthrate.tasks.builtin import builtin_measurements
from depthrate.tasks.measurement import Measurement, Per, by_name
from depthrate.tasks.task import Task

TABLES: dict[Per, str] = {"layer": "metrics", "step": "curves"}
"""Where a measurement's column stands."""


@cache
def builtin_columns() -> Columns:
    """Return the columns that every file has: those of the tasks that come with depthrate."""
    return Columns(_tables(builtin_measurements()))


def columns_of(task: Task) -> Columns:
    """Return these and the task's own.

    Raises:
        TableError: the task declares a column that stands for something else.
    """
    return Columns(builtin_columns().standard, _tables(task.measurements))


def known_measurements(task: Task) -> dict[str, Measurement]:
    """Return name -> measurement: what the task declares, then what others declare, as its columns may be theirs."""
    return by_name(task.measurements) | {
        each.name: each for each in builtin_measurements() if each.name not in {own.name for own in task.measurements}
    }


def _tables(measurements: Iterable[Measurement]) -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for each in measurements:
        tables.setdefault(TABLES[each.per], {})[each.name] = each.kind
    return tables
