"""From a task's name to the task: a built-in one, a function in a user's file, or one in an installed module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from depthrate.tasks.builtin import builtin_tasks
from depthrate.tasks.own.references import OWN
from depthrate.tasks.schema import nearest
from depthrate.tasks.task import Task, TaskError
from depthrate.tasks.user_module import load_user_module


def load_task(name: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None) -> Task:
    """Load a task by its built-in name, as `file.py:function` (relative to `folder`), or as `package.module:function`.

    With `files` (path -> content, as in `TaskCode`) that code is executed, and not what the files hold by now.

    Raises:
        TaskError: there is no such task, file, module or function, or the function is not marked as a task.
    """
    _check_text(name)
    builtin = builtin_tasks()
    if name in builtin:
        return builtin[name]
    if name.partition("?")[0] == OWN:
        from depthrate.tasks.own.task import own_task  # it imports numpy, which most commands do without

        return own_task(name, files)
    where, separator, function_name = name.rpartition(":")
    if not separator or not where:
        raise TaskError(
            f"unknown task {name!r}{nearest(name, builtin)}; allowed: {', '.join(builtin)}, "
            "'./my_task.py:function' or 'package.module:function'"
        )
    module, code = load_user_module(where, folder, files)
    function = getattr(module, function_name, None)
    loaded = getattr(function, "__depthrate_task__", None)
    if loaded is None:
        state = "has no function" if function is None else "does not mark with @depthrate.task the function"
        found = [key for key, value in vars(module).items() if hasattr(value, "__depthrate_task__")]
        raise TaskError(f"{where} {state} {function_name!r}; tasks there: {', '.join(found) or 'none'}")
    assert isinstance(loaded, Task)
    return replace(loaded, code=code)


def absolute_task_name(name: str, folder: Path) -> str:
    """Return the task's name with a relative file path made absolute, so that any process can load it.

    Raises:
        TaskError: it has characters that no name has.
    """
    _check_text(name)
    where, separator, function_name = name.rpartition(":")
    if separator and where.endswith(".py"):
        return f"{(folder / where).resolve()}:{function_name}"
    return name


def _check_text(name: str) -> None:
    if not name.isprintable():
        raise TaskError(f"task {name!r:.200} has characters that no file or function has in its name")
