"""From a task's name to the task: a built-in one, a function in a user's file, or one in an installed module."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from depthrate.tasks.builtin import builtin_tasks
from depthrate.tasks.schema import ParameterError, nearest
from depthrate.tasks.task import Task, TaskError


def load_task(name: str, folder: Path | None = None) -> Task:
    """Load a task by its built-in name, as `file.py:function` (relative to `folder`), or as `package.module:function`.

    Raises:
        TaskError: there is no such task, file, module or function, or the function is not marked as a task.
    """
    builtin = builtin_tasks()
    if name in builtin:
        return builtin[name]
    where, separator, function_name = name.rpartition(":")
    if not separator or not where:
        raise TaskError(
            f"unknown task {name!r}{nearest(name, builtin)}; allowed: {', '.join(builtin)}, "
            "'./my_task.py:function' or 'package.module:function'"
        )
    module = _load_file(where, folder) if where.endswith(".py") else _load_module(where)
    function = getattr(module, function_name, None)
    loaded = getattr(function, "__depthrate_task__", None)
    if loaded is None:
        state = "has no function" if function is None else "does not mark with @depthrate.task the function"
        found = [key for key, value in vars(module).items() if hasattr(value, "__depthrate_task__")]
        raise TaskError(f"{where} {state} {function_name!r}; tasks there: {', '.join(found) or 'none'}")
    assert isinstance(loaded, Task)
    return loaded


def absolute_task_name(name: str, folder: Path) -> str:
    """Return the task's name with a relative file path made absolute, so that any process can load it."""
    where, separator, function_name = name.rpartition(":")
    if separator and where.endswith(".py"):
        return f"{(folder / where).resolve()}:{function_name}"
    return name


def _load_file(path_text: str, folder: Path | None) -> Any:
    path = ((folder or Path.cwd()) / path_text).resolve()
    if not path.is_file():
        raise TaskError(f"task file {path} does not exist (given: {path_text!r}, looked up beside the sweep file)")
    status = path.stat()
    module = _run_file(path, (status.st_mtime_ns, status.st_size, status.st_ino))
    sys.modules[module.__name__] = module  # dataclasses and pickle look a module up by its name
    return module


@functools.lru_cache(maxsize=8)  # a worker takes one pack after another of the same file
def _run_file(path: Path, version: tuple[int, ...]) -> Any:
    """Execute a file of tasks; `version` is another one when its content is."""
    spec = importlib.util.spec_from_file_location(f"depthrate_task_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except ParameterError:
        raise
    except Exception as error:
        raise TaskError(f"task file {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ParameterError:
        raise
    except Exception as error:
        raise TaskError(f"task module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
