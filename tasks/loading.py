"""Load a task by name: a registered one, a function in a user's file, or one in an installed module."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from depthrate.tasks.code.load import code_of_file, code_of_installed, load_user_module, task_file
from depthrate.tasks.function_task import FunctionTask
from depthrate.tasks.interface import Task, TaskCode, TaskError
from depthrate.tasks.parameters import nearest
from depthrate.tasks.registry import registered_task, task_names
from depthrate.tasks.supervised.references import is_custom_task_text, parse_references


def load_task(name: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None) -> Task:
    """Load a task by its registered name, as `file.py:function` (relative to `folder`), or as `package.module:function`.

    With `files` (path -> content, as in `TaskCode`), that code is executed instead of the current files.

    Raises:
        TaskError: The task, file, module or function does not exist, the function is not marked as a task, or its code is
            not trusted.
        PluginError: A registered task is faulty.
    """
    _check_text(name)
    if ":" not in name and name in task_names():  # in this order: a file's task needs no scan of installed packages
        return registered_task(name)
    if is_custom_task_text(name):
        from depthrate.tasks.supervised.task import load_custom_task  # imports numpy, which most commands do not need

        return load_custom_task(name, files)
    location, separator, function_name = name.rpartition(":")
    if not separator or not location:
        raise TaskError(
            f"unknown task {name!r}{nearest(name, task_names())}, expected {', '.join(task_names())}, "
            "'./my_task.py:function' or 'package.module:function'"
        )
    module, code = load_user_module(location, folder, files)
    function = getattr(module, function_name, None)
    loaded = getattr(function, "__depthrate_task__", None)
    if loaded is None:
        state = "has no function" if function is None else "does not mark with @depthrate.task the function"
        tasks = [key for key, value in vars(module).items() if hasattr(value, "__depthrate_task__")]
        raise TaskError(f"{location} {state} {function_name!r}. Tasks in it: {', '.join(tasks) or 'none'}.")
    if isinstance(loaded, Exception):
        raise loaded if isinstance(loaded, ValueError) else TaskError(f"{location}: {type(loaded).__name__}: {loaded}")
    assert isinstance(loaded, FunctionTask)
    is_generator = inspect.isgeneratorfunction(function)
    if is_generator or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        form = "a generator" if is_generator else "an async function"
        raise TaskError(f"task {name} ({loaded.defined_at}) is {form}, expected a function that returns its tables.")
    return replace(loaded, code=code)


def names_user_code(name: str) -> bool:
    """Return whether loading a task executes a user's code, from a file or an installed module."""
    if is_custom_task_text(name):
        return bool(parse_references(name).callables)
    return ":" in name


def code_of_task(name: str) -> TaskCode | None:
    """Return the user's code that loading a task would execute, or None without user code or without its source.

    Raises:
        TaskError: A file does not exist or cannot be read.
    """
    if not names_user_code(name):
        return None
    if is_custom_task_text(name):
        return parse_references(name).code()
    location = name.rpartition(":")[0]
    return code_of_file(task_file(Path(location))) if location.endswith(".py") else code_of_installed(location)


def absolute_task_name(name: str, folder: Path) -> str:
    """Make a relative file path in a task's name absolute, so that any process can load the task.

    Raises:
        TaskError: The name has unprintable characters, or is a link to a file that is not a Python file.
    """
    _check_text(name)
    location, separator, function_name = name.rpartition(":")
    if separator and location.endswith(".py"):
        return f"{task_file(folder / location)}:{function_name}"
    return name


def _check_text(name: str) -> None:
    if not name.isprintable():
        raise TaskError(f"task {name!r:.200} has unprintable characters")
