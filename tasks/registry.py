"""The tasks that packages register in the entry-point group `depthrate.tasks`, and the columns that the core's measure."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

from depthrate.tasks.interface import Task
from depthrate.tasks.metric import Metric
from depthrate.tasks.plugins import PluginError, load_plugin, load_plugins, registered_names
from depthrate.tasks.supervised.metrics import CLASSES, NEXT_TOKENS, NUMBERS

GROUP = "depthrate.tasks"


def task_names() -> tuple[str, ...]:
    """Return the names of all registered tasks, those of depthrate first."""
    return registered_names(GROUP)


def builtin_task_names() -> tuple[str, ...]:
    """Return the names of depthrate's own tasks."""
    return registered_names(GROUP, builtin=True)


def registered_task(name: str) -> Task:
    """Import a registered task, and no other.

    Raises:
        PluginError: It cannot be imported, is no task, or has another name.
    """
    registered = load_plugin(GROUP, name, object)
    if hasattr(registered, "__depthrate_task__"):  # a function marked with @depthrate.task
        return replace(registered.__depthrate_task__, name=name)
    return load_plugin(GROUP, name, Task)  # type: ignore[type-abstract]  # instances of classes below it are registered


@cache
def find_task(name: str) -> Task | None:
    """Import a registered task; None where there is none of that name, or it is faulty, which is logged."""
    try:
        return registered_task(name) if name in task_names() else None
    except PluginError as error:
        logging.getLogger("depthrate").warning("%s", error)
        return None


def registered_tasks() -> dict[str, Task]:
    """Import all registered tasks: name -> task. A faulty one of another package is logged and left out."""
    return load_plugins(GROUP, registered_task)


def core_measurements() -> tuple[Metric, ...]:
    """Return the measurements of the supervised tasks, which `measure` and `probe` give any task, each column once."""
    by_column: dict[str, Metric] = {}
    for measurement in (*CLASSES, *NEXT_TOKENS, *NUMBERS):
        by_column.setdefault(measurement.name, measurement)
    return tuple(by_column.values())
