"""From a task's name to the task: a registered one, a function in a user's file, or one in an installed module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from depthrate.tasks.code.collect import TaskCode
from depthrate.tasks.code.load import code_of_file, code_of_installed, load_user_module, task_file
from depthrate.tasks.function_task import FunctionTask
from depthrate.tasks.interface import Task, TaskError
from depthrate.tasks.parameters import nearest
from depthrate.tasks.registry import registered_task, task_names
from depthrate.tasks.supervised.references import is_custom_task_text, parse_references


def load_task(name: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None) -> Task:
    """Load a task by its registered name, as `file.py:function` (relative to `folder`), or as `package.module:function`.

    With `files` (path -> content, as in `TaskCode`) that code is executed, and not what the files hold by now.

    Raises:
        TaskError: there is no such task, file, module or function, the function is not marked as a task, or others decide
            what the file holds.
        PluginError: A registered task is faulty.
    """
    _check_text(name)
    if _is_registered(name):
        return registered_task(name)
    if is_custom_task_text(name):
        from depthrate.tasks.supervised.task import load_custom_task  # imports numpy, which most commands do without

        return load_custom_task(name, files)
    where, separator, function_name = name.rpartition(":")
    if not separator or not where:
        raise TaskError(
            f"unknown task {name!r}{nearest(name, task_names())}; allowed: {', '.join(task_names())}, "
            "'./my_task.py:function' or 'package.module:function'"
        )
    module, code = load_user_module(where, folder, files)
    function = getattr(module, function_name, None)
    loaded = getattr(function, "__depthrate_task__", None)
    if loaded is None:
        state = "has no function" if function is None else "does not mark with @depthrate.task the function"
        tasks = [key for key, value in vars(module).items() if hasattr(value, "__depthrate_task__")]
        raise TaskError(f"{where} {state} {function_name!r}; tasks there: {', '.join(tasks) or 'none'}")
    assert isinstance(loaded, FunctionTask)
    return replace(loaded, code=code)


def names_user_code(name: str) -> bool:
    """Whether loading a task executes code of the user's: a file's, or an installed module's."""
    if is_custom_task_text(name):
        return bool(parse_references(name).callables)
    return ":" in name


def code_of_task(name: str) -> TaskCode | None:
    """Return the user's code that loading a task executes, without executing it; None where there is none, or no source.

    Raises:
        TaskError: a file is not there, or cannot be read.
    """
    if not names_user_code(name):
        return None
    if is_custom_task_text(name):
        return parse_references(name).code()
    where = name.rpartition(":")[0]
    return code_of_file(task_file(Path(where))) if where.endswith(".py") else code_of_installed(where)


def _is_registered(name: str) -> bool:
    return ":" not in name and name in task_names()  # in this order: a file's task needs no scan of what is installed


def absolute_task_name(name: str, folder: Path) -> str:
    """Return the task's name with a relative file path made absolute, so that any process can load it.

    Raises:
        TaskError: it has characters that no name has, or is a link to what is no Python file.
    """
    _check_text(name)
    where, separator, function_name = name.rpartition(":")
    if separator and where.endswith(".py"):
        return f"{task_file(folder / where)}:{function_name}"
    return name


def _check_text(name: str) -> None:
    if not name.isprintable():
        raise TaskError(f"task {name!r:.200} has characters that no file or function has in its name")
