"""Import a user's module from a file or an installed package: read, check, unpack by hash, import the unpacked copy.

The executed code is the code that was read, even if the files change later. The unpacked folder is first on the import path
while its task is active. Two folders may each have a `model.py`, and one file two versions: when another version becomes
active, the modules of the previous one are removed from `sys.modules` and restored when it is active again. `__file__` is the
path of the original, so that a module finds its data files.

The folders lie below XDG_CACHE_HOME, else ~/.cache, in `depthrate/code`, and may be deleted when nothing runs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from depthrate.tasks.code.collect import TaskCode, TooManyFilesError, code_of_module, collect_code, real_path
from depthrate.tasks.code.explain import explain_import_error
from depthrate.tasks.code.trust import STRICT_MODES, is_accepted, untrusted_reason
from depthrate.tasks.code.unpack import unpack
from depthrate.tasks.interface import TaskError
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.private_cache import is_of_process

_MAIN = "depthrate_task_"
"""Begins the name of the module of a task's own file."""


def load_user_module(
    where: str, folder: Path | None = None, files: Mapping[str, bytes] | None = None
) -> tuple[Any, TaskCode | None]:
    """Return a module and its code: `file.py` (relative to `folder`) or `package.module`; null for one that is no source file.

    With `files` (path -> content, as in `TaskCode`) that code is executed, and not what the files hold by now.

    Raises:
        TaskError: there is no such file or module, others decide what it holds, or it does not import.
    """
    return _load_file(where, folder, files) if where.endswith(".py") else _load_module(where, files)


def task_file(given: Path) -> Path:
    """Return where a task file's path leads, absolute.

    Raises:
        TaskError: it is a link to a file that has no name of a Python file.
    """
    path = real_path(given)
    if path.suffix != ".py":
        raise TaskError(f"task file {given} is a link to {path}, which has no name of a Python file (*.py)")
    return path


def code_of_file(path: Path) -> TaskCode:
    """Read a file's code: the file, and the modules beside it that it imports.

    Raises:
        TaskError: it is not there, or cannot be read.
    """
    if not path.is_file():
        what = "is a link that leads to no file" if path.is_symlink() else "does not exist"
        raise TaskError(f"task or module file {path} {what} (relative paths are relative to the sweep file)")
    try:
        return collect_code(path, path.parent)
    except (OSError, TooManyFilesError) as error:
        raise TaskError(f"task file {path} cannot be read: {error}") from None


def code_of_installed(name: str) -> TaskCode | None:
    """Return the code of a module that is named as `package.module`, which is not executed; None where no file is found.

    Raises:
        TaskError: it cannot be read.
    """
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    places = [Path(place, *rest) for place in spec.submodule_search_locations or ()]
    files = [file for place in places for file in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
    files += [Path(spec.origin)] if spec.origin is not None and not rest else []
    try:
        return next((code for file in files if (code := code_of_module(str(file), name)) is not None), None)
    except (OSError, TooManyFilesError) as error:
        raise TaskError(f"task module {name!r} cannot be read: {error}") from None


def require_trust(code: TaskCode, main: Path) -> None:
    """Check that nobody else decides what is executed, or that this very code was accepted; `main` is its file as given.

    Raises:
        TaskError: others can write to it; saying where, and how to go on.
    """
    problems = untrusted_reason(code, main, named=True)
    if problems and not is_accepted(code.content_hash):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TaskError(
            f"the code of {main} is not executed: {problems[0]}{more}, so that it is not you alone who decides what it does; "
            f"go on with chmod go-w, or a copy in a folder of your own, or {how_to_accept(code)}; {STRICT_MODES}=off in the "
            "environment leaves out this check of files that you name yourself"
        )


def how_to_accept(code: TaskCode) -> str:
    """Return how code is read and accepted, for a message; what is to be read is unpacked for it."""
    folder = unpack(code)
    if is_of_process(folder.parent):
        return "set XDG_CACHE_HOME to a folder that is yours alone, from which it can be read and accepted"
    return f"read what is in {folder} and accept it as it is: depthrate trust {code.content_hash}"


class _Loader(SourceFileLoader):
    """Executes an unpacked file in the name of the one that it was read from; no byte code is used or written."""

    def __init__(self, fullname: str, path: str, source: Path, *, has_more: bool):
        super().__init__(fullname, path)
        self._source = source
        self._has_more = has_more
        """Whether a package has modules and data that are not part of the code, which come from where it was read."""

    def path_stats(self, path: str) -> dict[str, float]:
        """Say that nothing is known of the file, so that there is no byte code of it."""
        raise OSError(f"no byte code of {path} is kept")

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the compiled file; data are looked for beside the file that it was read from."""
        code = super().get_code(fullname)
        self.path = str(self._source)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Execute the file."""
        module.__file__ = str(self._source)
        if self._has_more and hasattr(module, "__path__"):
            module.__path__ = [*module.__path__, str(self._source.parent)]
        super().exec_module(module)


class _ImportPath:
    """Which version of a task's code is imported from now."""

    def __init__(self) -> None:
        self._active: tuple[Path, Path] | None = None
        """The folder that it is unpacked in, and the one that it was read from."""
        self._aside: dict[tuple[Path, Path], dict[str, ModuleType]] = {}
        """Of versions that were at work before: their modules."""
        self._lock = threading.RLock()
        """Two launches of one process may load tasks at the same moment."""

    def activate(self, folder: Path | None, code: TaskCode | None = None, *, has_more: bool = False) -> None:
        """Import a version of a task's code from where it is unpacked, and no longer the one before; null: none.

        With `has_more` it is part of an installed package, the rest of which is imported from there.
        """
        with self._lock:
            active = None if folder is None or code is None else (folder, code.root)
            if active == self._active:
                return
            if self._active is not None:
                self._put_aside(self._active)
            self._active = active
            if active is not None and code is not None:
                self._take_up(active, code, has_more)
            importlib.invalidate_caches()

    def _put_aside(self, active: tuple[Path, Path]) -> None:
        folder = active[0]
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        names = [name for name, module in list(sys.modules.items()) if _is_from(folder, module)]
        self._aside[active] = {name: sys.modules.pop(name) for name in names if not name.startswith(_MAIN)}

    def _take_up(self, active: tuple[Path, Path], code: TaskCode, has_more: bool) -> None:
        folder, root = active

        def loader(fullname: str, path: str) -> _Loader:
            return _Loader(fullname, path, root / Path(path).relative_to(folder), has_more=has_more)

        for place in {folder, *((folder / relative).parent for relative, _ in code.files)}:
            details: Any = [(ExtensionFileLoader, EXTENSION_SUFFIXES), (loader, [".py"])]
            sys.path_importer_cache[str(place)] = FileFinder(str(place), *details)
        sys.path.insert(_position(code, has_more), str(folder))
        sys.modules.update(self._aside.pop(active, {}))


def _is_from(folder: Path, module: ModuleType | None) -> bool:
    """Whether a module was imported from unpacked code, also as a package without `__init__.py`."""
    spec = getattr(module, "__spec__", None)
    places = [getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(isinstance(place, str) and Path(place).is_relative_to(folder) for place in places)


def _position(code: TaskCode, has_more: bool) -> int:
    """Return where on the import path unpacked code stands.

    It stands first, since it has nothing that is called like a module of the standard library but perhaps the task's own file;
    and an installed package just where it is installed.
    """
    if has_more:
        return sys.path.index(str(code.root)) if str(code.root) in sys.path else 0
    if Path(code.main).stem not in sys.stdlib_module_names:
        return 0
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {f"{path}/lib-dynload" for path in standard}
    return max((i + 1 for i, entry in enumerate(sys.path) if entry in standard), default=0)


_IMPORT_PATH = _ImportPath()


def _load_file(path_text: str, folder: Path | None, files: Mapping[str, bytes] | None) -> tuple[Any, TaskCode]:
    given = (folder or Path.cwd()) / path_text
    path = real_path(given) if files is not None else task_file(given)
    if files is not None:
        code = TaskCode(path.parent, path.name, tuple(sorted(files.items())))
        if path.name not in files:
            raise TaskError(f"the code that was kept of task file {path} lacks it; it holds {', '.join(sorted(files))}")
    else:
        code = code_of_file(path)
        require_trust(code, given)
    unpacked = unpack(code)
    _IMPORT_PATH.activate(unpacked, code)
    module = _run_file(path, unpacked, code)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a module up by its name
    return module, code


@functools.lru_cache(maxsize=8)  # a worker takes one pack after another of the same file
def _run_file(path: Path, unpacked: Path, code: TaskCode) -> Any:
    """Execute a file of tasks, as the code has it."""
    name = f"{_MAIN}{path.stem}"
    loader = _Loader(name, str(unpacked / code.main), path, has_more=False)
    spec = importlib.util.spec_from_file_location(name, unpacked / code.main, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
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
        code = _code_of_files(name, files)
        _IMPORT_PATH.activate(unpack(code), code, has_more=True)
        return _import_module(name), code
    _IMPORT_PATH.activate(None)
    installed = code_of_installed(name)
    if installed is not None:
        require_trust(installed, installed.root / installed.main)
    module = _import_module(name)
    try:
        return module, installed or code_of_module(getattr(module, "__file__", None) or "", name)
    except (OSError, TooManyFilesError) as error:
        raise TaskError(f"task module {name!r} cannot be read: {error}") from None


def _code_of_files(name: str, files: Mapping[str, bytes]) -> TaskCode:
    """Return the code of a module's task that was read elsewhere, below the folder where the module is found here."""
    module = name.replace(".", "/")
    main = f"{module}.py" if f"{module}.py" in files else f"{module}/__init__.py"
    installed = code_of_installed(name)
    root = Path.cwd() if installed is None else installed.root
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
