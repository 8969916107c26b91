"""From a task's name to the task: a built-in one, a function in a user's file, or one in an installed module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from depthrate.tasks.builtin import BUILTIN, builtin_task
from depthrate.tasks.function_task import FunctionTask
from depthrate.tasks.own.references import OWN, code_of_references, names_own, references_of_text
from depthrate.tasks.parameters import nearest
from depthrate.tasks.task import Task, TaskError
from depthrate.tasks.task_code import TaskCode
from depthrate.tasks.user_code import code_of_file, code_of_installed, load_user_module, task_file


def load_task(name: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None) -> Task:
    """Load a task by its built-in name, as `file.py:function` (relative to `folder`), or as `package.module:function`.

    With `files` (path -> content, as in `TaskCode`) that code is executed, and not what the files hold by now.

    Raises:
        TaskError: there is no such task, file, module or function, the function is not marked as a task, or others decide
            what the file holds.
    """
    _check_text(name)
    if name in BUILTIN:
        return builtin_task(name)
    if names_own(name):
        from depthrate.tasks.own.task import Own, own_task  # it imports numpy, which most commands do without

        host = references_of_text(name).task
        built_in = None if host == OWN else builtin_task(host)
        return own_task(name, files, type(built_in) if isinstance(built_in, Own) else Own)
    where, separator, function_name = name.rpartition(":")
    if not separator or not where:
        raise TaskError(
            f"unknown task {name!r}{nearest(name, BUILTIN)}; allowed: {', '.join(BUILTIN)}, "
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
    if names_own(name):
        references = references_of_text(name)
        return any(":" in (value or "") for value in (references.arch, references.dataset))
    return ":" in name and name not in BUILTIN


def code_of_task(name: str) -> TaskCode | None:
    """Return the user's code that loading a task executes, without executing it; None where there is none, or no source.

    Raises:
        TaskError: a file is not there, or cannot be read.
    """
    if not names_user_code(name):
        return None
    if names_own(name):
        return code_of_references(references_of_text(name))
    where = name.rpartition(":")[0]
    return code_of_file(task_file(Path(where))) if where.endswith(".py") else code_of_installed(where)


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
