"""Tasks registered in the entry-point group `depthrate.tasks`."""

import logging
from dataclasses import replace
from functools import cache

from depthrate.tasks.interface import CUSTOM, Task
from depthrate.tasks.parameters import ParameterSchema
from depthrate.tasks.plugins import PluginError, load_plugin, load_plugins, registered_names

GROUP = "depthrate.tasks"


def task_names() -> tuple[str, ...]:
    """Return the names of all registered tasks, built-in ones first."""
    return registered_names(GROUP)


def builtin_task_names() -> tuple[str, ...]:
    return registered_names(GROUP, builtin=True)


def registered_task(name: str) -> Task:
    """Import a registered task, and no other.

    Raises:
        PluginError: It cannot be imported, is not a task, or has another name.
    """
    registered = load_plugin(GROUP, name, object)
    if hasattr(registered, "__depthrate_task__"):  # a function marked with @depthrate.task
        return replace(registered.__depthrate_task__, name=name)
    return load_plugin(GROUP, name, Task)  # type: ignore[type-abstract]  # registered objects are of concrete subclasses


@cache
def find_task(name: str) -> Task | None:
    """Import a registered task, or return None if the name is unknown or the task is faulty, which is logged."""
    try:
        return registered_task(name) if name in task_names() else None
    except PluginError as error:
        logging.getLogger("depthrate").warning("%s", error)
        return None


def find_schema(name: str) -> ParameterSchema:
    """Return the parameters of a registered task's trials, also with custom networks or data. Empty if it is unknown."""
    task = find_task("collapse" if name == CUSTOM else name) or find_task(name.partition(":")[0])
    return ParameterSchema(()) if task is None else task.schema


def registered_tasks() -> dict[str, Task]:
    """Import all registered tasks and return them by name. Faulty tasks of other packages are logged and skipped."""
    return load_plugins(GROUP, registered_task)
