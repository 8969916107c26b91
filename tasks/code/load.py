"""Import a user's module from a file or an installed package: read, check, unpack by hash, import the unpacked copy.

The executed code is the code that was read, even if the files change later. The unpacked folder is first on `sys.path` while
its task is active. Two folders may each have a `model.py`, and one file two versions: when another version becomes active, the
modules of the previous one are removed from `sys.modules` and restored when it is active again. `__file__` of the task's file
is the path of the original, so that it finds its data files. It imports modules from the unpacked copy.

The folders lie below XDG_CACHE_HOME, else ~/.cache, in `depthrate/code`, and may be deleted when nothing runs.
"""

import functools
import importlib
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from depthrate.tasks.code.collect import TooManyFilesError, code_of_module, collect_code, real_path
from depthrate.tasks.code.explain import explain_import_error
from depthrate.tasks.code.private_cache import is_of_process
from depthrate.tasks.code.trust import STRICT_MODES, is_accepted, untrusted_reason
from depthrate.tasks.code.unpack import unpack
from depthrate.tasks.interface import TaskCode, TaskError
from depthrate.tasks.parameters import ParameterError

_MAIN = "depthrate_task_"
"""Prefix of the module name of a task's file."""
IS_LOADING = ContextVar("IS_LOADING", default=False)
"""Whether a user's module is being imported, so that only the requested one of its tasks must be valid."""


def load_user_module(
    location: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None
) -> tuple[Any, TaskCode | None]:
    """Import `file.py` (relative to `folder`) or `package.module`, and return the module and its code (None without source).

    With `files` (path -> content, as in `TaskCode`), that code is executed instead of the current files.

    Raises:
        TaskError: The file or module does not exist, is not trusted, or cannot be imported.
    """
    token = IS_LOADING.set(True)
    try:
        return _load_file(location, folder, files) if location.endswith(".py") else _load_module(location, files)
    finally:
        IS_LOADING.reset(token)


def task_file(path: Path) -> Path:
    """Resolve a task file's path to an absolute path.

    Raises:
        TaskError: It is a link to a file without the suffix .py.
    """
    target = real_path(path)
    if target.suffix != ".py":
        raise TaskError(f"task file {path} is a link to {target}, which is not a Python file (*.py)")
    return target


def code_of_file(path: Path) -> TaskCode:
    """Read a file's code: the file and the local modules it imports.

    Raises:
        TaskError: The file does not exist or cannot be read.
    """
    if not path.is_file():
        problem = "is a broken link" if path.is_symlink() else "does not exist"
        raise TaskError(f"task or module file {path} {problem} (relative paths are relative to the sweep file)")
    try:
        return collect_code(path, path.parent)
    except (OSError, TooManyFilesError) as error:
        raise TaskError(f"task file {path} cannot be read: {error}") from None


def code_of_installed(name: str) -> TaskCode | None:
    """Read the code of `package.module` without executing it, or return None if it has no source file.

    Raises:
        TaskError: It cannot be read.
    """
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    modules = [Path(location, *rest) for location in spec.submodule_search_locations or ()]
    files = [file for module in modules for file in (module / "__init__.py", module.with_name(f"{module.name}.py"))]
    files += [Path(spec.origin)] if spec.origin is not None and not rest else []
    try:
        return next((code for file in files if (code := code_of_module(str(file), name)) is not None), None)
    except (OSError, TooManyFilesError) as error:
        raise TaskError(f"task module {name!r} cannot be read: {error}") from None


def require_trust(code: TaskCode, main: Path) -> bool:
    """Check that only this user can change the code, or that its hash is accepted. `main` is its file, with links.

    Returns:
        Whether only the hash is trusted, so that others may replace the files at any time.

    Raises:
        TaskError: Others can write to it. Names the path and the ways to proceed.
    """
    problems = untrusted_reason(code, main, named=True)
    if problems and not is_accepted(code.content_hash):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TaskError(
            f"the code of {main} was not executed: {problems[0]}{more}, so other users could change it. "
            f"Run chmod go-w, copy it to a folder of your own, or {how_to_accept(code)}. "
            f"{STRICT_MODES}=off in the environment disables this check for files that you name yourself."
        )
    return bool(problems)


def how_to_accept(code: TaskCode) -> str:
    """Unpack code for review and return the instruction to review and accept it, for a message."""
    folder = unpack(code)
    if is_of_process(folder.parent):
        return "set XDG_CACHE_HOME to a folder that only you can write, where the code can be reviewed and accepted"
    return f"review {folder} and trust it: depthrate trust {code.content_hash}"


_LOCK = threading.RLock()  # two launches in one process may load tasks at the same time
_active: Path | None = None
"""Folder of unpacked code that is on the import path."""
_inactive: dict[Path, dict[str, ModuleType]] = {}
"""Folder of unpacked code -> its imported modules, while other code is active."""


def activate(folder: Path | None, code: TaskCode | None = None, *, has_more: bool = False) -> None:
    """Import from the unpacked `code` in `folder`, and no longer from the code before it. None: from neither.

    With `has_more`, the code is part of an installed package, and the rest is imported from there.
    """
    global _active
    with _LOCK:
        if folder == _active:
            return
        if _active is not None:
            if str(_active) in sys.path:
                sys.path.remove(str(_active))
            names = [name for name, module in list(sys.modules.items()) if _is_from(_active, module)]
            _inactive[_active] = {name: sys.modules.pop(name) for name in names if not name.startswith(_MAIN)}
            for module in [m for m in sys.modules.values() if isinstance(getattr(m, "__path__", 0), list)]:
                module.__path__ = [path for path in module.__path__ if not Path(path).is_relative_to(_active)]
        if folder is not None and code is not None:
            sys.path.insert(_position(code, has_more), str(folder))
            sys.modules.update(_inactive.pop(folder, {}))
        _active = folder
        importlib.invalidate_caches()


def _is_from(folder: Path, module: ModuleType | None) -> bool:
    """Return whether a module was imported from unpacked code, also as a package without `__init__.py`."""
    spec = getattr(module, "__spec__", None)
    paths = [getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(isinstance(path, str) and Path(path).is_relative_to(folder) for path in paths)


def _position(code: TaskCode, has_more: bool) -> int:
    """Return the position of unpacked code on the import path.

    It comes first, since only the task's own file can share its name with a standard library module. In that case it comes
    after the standard library. Code of an installed package comes just before that package.
    """
    if has_more:
        return sys.path.index(str(code.root)) if str(code.root) in sys.path else 0
    if Path(code.main).stem not in sys.stdlib_module_names:
        return 0
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {f"{path}/lib-dynload" for path in standard}
    return max((i + 1 for i, entry in enumerate(sys.path) if entry in standard), default=0)


def _load_file(path_text: str, folder: Path | None, files: Mapping[str, bytes] | None) -> tuple[Any, TaskCode]:
    requested = (folder or Path.cwd()) / path_text
    path = real_path(requested) if files is not None else task_file(requested)
    if files is not None:
        code = TaskCode(path.parent, path.name, tuple(sorted(files.items())))
        if path.name not in files:
            raise TaskError(
                f"the stored code of task file {path} does not include the file itself, only {', '.join(sorted(files))}."
            )
    else:
        code = code_of_file(path)
        require_trust(code, requested)
    unpacked = unpack(code)
    activate(unpacked, code)
    module = _run_file(path, unpacked, code)
    sys.modules[module.__name__] = module  # dataclasses and pickle look up a module by name
    return module, code


@functools.lru_cache(maxsize=8)  # a worker runs many packs of the same file
def _run_file(path: Path, unpacked: Path, code: TaskCode) -> Any:
    """Execute the task's file from the unpacked code."""
    name = f"{_MAIN}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, unpacked / code.main)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ParameterError:
        raise
    except Exception as error:
        raise TaskError(
            f"task file {path} cannot be imported: {explain_import_error(error, unpacked, code)}"
        ) from error
    return module


def _load_module(name: str, files: Mapping[str, bytes] | None) -> tuple[Any, TaskCode | None]:
    if files is not None:
        # The code is rooted at the folder where the module is installed on this machine.
        path, installed = name.replace(".", "/"), code_of_installed(name)
        main = f"{path}.py" if f"{path}.py" in files else f"{path}/__init__.py"
        root = Path.cwd() if installed is None else installed.root
        code = TaskCode(root, main, tuple(sorted(files.items())))
        activate(unpacked := unpack(code), code, has_more=True)
        parts = name.split(".")
        for length in range(1, len(parts)):
            package = _import_module(".".join(parts[:length]))
            first, rest = (str(Path(folder, *parts[:length])) for folder in (unpacked, code.root))
            package.__path__ = list(dict.fromkeys([first, *package.__path__, rest]))
        return _import_module(name), code
    activate(None)
    installed = code_of_installed(name)
    if installed is not None and require_trust(installed, installed.root / installed.main):
        return _load_module(name, installed.contents)
    module = _import_module(name)
    try:
        return module, installed or code_of_module(getattr(module, "__file__", None) or "", name)
    except (OSError, TooManyFilesError) as error:
        raise TaskError(f"task module {name!r} cannot be read: {error}") from None


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ParameterError:
        raise
    except ModuleNotFoundError as error:
        raise TaskError(
            f"task module {name!r} cannot be imported: {error}. Searched the packages of {sys.executable} and PYTHONPATH. "
            "Name a task in a file by its path: './my_task.py:function'."
        ) from error
    except Exception as error:
        raise TaskError(f"task module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
