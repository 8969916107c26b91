"""A module of a user's, a file or one of an installed package, with the source that it was executed from."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from depthrate.tasks.kept_loader import kept_spec
from depthrate.tasks.schema import ParameterError, nearest
from depthrate.tasks.task import TaskError
from depthrate.tasks.task_code import TaskCode, TooMuchCode, code_of_module, collect_code
from depthrate.tasks.task_folder import import_beside, module_names

_ROOMS = [Path(__file__).resolve().parents[1] / room for room in ("depthrate", "orchestrator", "sweeps", "tasks")]


def load_user_module(
    where: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None
) -> tuple[Any, TaskCode | None]:
    """Return a module and its code: `file.py` (relative to `folder`) or `package.module`; null for one that is no source file.

    With `files` (path -> content, as in `TaskCode`) that code is executed, and not what the files hold by now.

    Raises:
        TaskError: there is no such file or module, or it does not import.
    """
    return _load_file(where, folder, files) if where.endswith(".py") else _load_module(where, files)


def code_of_file(path: Path, given: str | None = None) -> TaskCode:
    """Return a file's code, which was `given` by this name: itself and what it imports of what lies beside it.

    Raises:
        TaskError: it is not there, or cannot be read.
    """
    if not path.is_file():
        named = "" if given is None else f"given: {given!r}, "
        raise TaskError(f"task file {path} does not exist ({named}looked up beside the sweep file)")
    try:
        return collect_code(path, path.parent)
    except (OSError, TooMuchCode) as error:
        raise TaskError(f"task file {path} cannot be read: {error}") from None


def _load_file(path_text: str, folder: Path | None, files: Mapping[str, bytes] | None) -> tuple[Any, TaskCode]:
    path = ((folder or Path.cwd()) / path_text).resolve()
    if files is not None:
        code = TaskCode(path.parent, path.name, tuple(sorted(files.items())))
        if path.name not in files:
            raise TaskError(f"the code that was kept of task file {path} lacks it; it holds {', '.join(sorted(files))}")
    else:
        code = code_of_file(path, path_text)
    import_beside(path.parent, code)
    module = _run_file(path, code)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a module up by its name
    return module, code


@functools.lru_cache(maxsize=8)  # a worker takes one pack after another of the same file
def _run_file(path: Path, code: TaskCode) -> Any:
    """Execute a file of tasks, as the code has it."""
    spec = kept_spec(f"depthrate_task_{path.stem}", code, path.name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except ParameterError:
        raise
    except Exception as error:
        raise TaskError(f"task file {path} cannot be imported: {_explain(error, path)}") from error
    return module


def _explain(error: Exception, path: Path) -> str:
    """Say what went wrong in a task file or beside it: the line, and for an import where it was looked for and what to do."""
    folder = path.parent
    where = innermost_line(error, folder)
    if not isinstance(error, ImportError):
        return f"{where}{type(error).__name__}: {error}"
    missing = error.name or ""
    top = missing.partition(".")[0]
    if top in sys.stdlib_module_names and top in module_names(folder):
        return f"{where}{error}; {top!r} is a name of the standard library, which comes first: rename {folder / top}"
    if not isinstance(error, ModuleNotFoundError) or not top:
        return f"{where}{error}"
    return (
        f"{where}no module named {missing!r}{nearest(missing, module_names(folder))}; looked in {folder} (the task "
        f"file's folder) and in what is installed for {sys.executable}; put {missing.replace('.', '/')}.py beside the "
        f"task file, or install it there"
    )


def innermost_line(error: BaseException, folder: Path | None = None) -> str:
    """Return the last line of a user's that an error came through, for the beginning of a message; an empty text for none.

    A user's line is one in `folder`; by default one that is neither installed nor depthrate's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if folder is not None:
        lines = [each for each in frames if Path(each.filename).parent == folder]
    else:
        lines = [each for each in frames if not _is_ours_or_installed(Path(each.filename))]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}: `{lines[-1].line}`: " if lines else ""


def _is_ours_or_installed(path: Path) -> bool:
    if "site-packages" in path.parts or path.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    return any(path.resolve().is_relative_to(room) for room in _ROOMS)


def _load_module(name: str, files: Mapping[str, bytes] | None) -> tuple[Any, TaskCode | None]:
    if files is not None:
        code = _code_of_files(name, files)
        import_beside(None, code)
        return _import_module(name), code
    import_beside(None)
    module = _import_module(name)
    try:
        return module, code_of_module(getattr(module, "__file__", None) or "", name)
    except (OSError, TooMuchCode) as error:
        raise TaskError(f"task module {name!r} cannot be read: {error}") from None


def _code_of_files(name: str, files: Mapping[str, bytes]) -> TaskCode:
    """Return the code of a module's task that was read elsewhere, below the folder where the module is found here."""
    module = name.replace(".", "/")
    main = f"{module}.py" if f"{module}.py" in files else f"{module}/__init__.py"
    top = PathFinder.find_spec(name.partition(".")[0])
    places = [] if top is None else top.submodule_search_locations or [top.origin or ""]
    root = Path(next(iter(places))).parent if places else Path.cwd()
    return TaskCode(root, main, tuple(sorted(files.items())))


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ParameterError:
        raise
    except ModuleNotFoundError as error:
        raise TaskError(
            f"task module {name!r} cannot be imported: {error}; looked in what is installed for {sys.executable} and in "
            "PYTHONPATH; a task in a file of your own is named by its path: './my_task.py:function'"
        ) from error
    except Exception as error:
        raise TaskError(f"task module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
