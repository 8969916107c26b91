"""The folder of a task file on the import path: what lies beside the file is imported as beside a script.

It comes after the standard library and before everything else, also before what PYTHONPATH and the working folder have, so
that the driver and every worker see the same modules. Two task files in two folders may each have a `model.py`: the modules
of one folder are put aside while the other's is active, and are there again when it is. The same holds for one folder with
two versions of its code: modules of the task's code come from what was read of them (`tasks.kept_loader`), never from what
the files hold by now.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder
from pathlib import Path
from types import ModuleType

from depthrate.tasks.kept_loader import KeptModules
from depthrate.tasks.task_code import TaskCode


class _TaskFolder(MetaPathFinder):
    """Finds modules in the folder that is active; `sys.path` has it too, for processes that a task starts."""

    def __init__(self) -> None:
        self.active: Path | None = None
        self._kept: KeptModules | None = None
        """Of the task's code, which may also be that of a module, without a folder."""
        self._is_added = False
        """Whether the active folder was not in `sys.path` before."""
        self._found: set[str] = set()
        """Top-level names that were found in the active folder."""
        self._aside: dict[tuple[Path | None, TaskCode | None], dict[str, ModuleType]] = {}
        """Of each folder that was active before, with its code then, its modules."""
        self._lock = threading.RLock()
        """Two launches of one process may load tasks at the same moment."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the task's code, or another one at the top of the folder.

        Raises:
            ImportError: it lies in the folder and was not known to belong to the code.
        """
        if fullname in sys.stdlib_module_names:
            return None
        if self._kept is not None and (kept := self._kept.find(fullname, None if path is None else list(path))):
            if self.active is None and path is None and not self._is_first_choice(fullname, kept):
                return None
            self._found.add(fullname.partition(".")[0])
            return kept
        if path is not None or self.active is None:
            return None
        spec = PathFinder.find_spec(fullname, [str(self.active)])
        if spec is None or spec.loader is None:
            return None  # a folder without code: an installed module of that name, if there is one, is what is meant
        if self._kept is not None and fullname not in sys.builtin_module_names:
            return self._elsewhere(fullname, spec)
        self._found.add(fullname)
        return spec

    def _is_first_choice(self, fullname: str, kept: ModuleSpec) -> bool:
        """Whether a module beside a task that was imported by its name is what Python would find."""
        found = PathFinder.find_spec(fullname, None)
        return found is None or found.origin is None or found.origin == kept.origin

    def _elsewhere(self, fullname: str, here: ModuleSpec) -> ModuleSpec:
        """Return an installed module of the same name as one in the folder that the task does not import by its name."""
        spec = PathFinder.find_spec(fullname, [entry for entry in sys.path if entry != str(self.active)])
        if spec is None:
            raise ImportError(
                f"{here.origin} is imported, but not by its name in the task file or in what that imports, so that it is "
                f"not part of the task's code; write `import {fullname}`",
                name=fullname,
            )
        return spec

    def activate(self, folder: Path | None, code: TaskCode | None = None) -> None:
        """Import from this folder from now on, and no longer from the one before."""
        with self._lock:
            before = None if self._kept is None else self._kept.code
            if (folder, code) == (self.active, before):
                return
            if (self.active, before) != (None, None):
                self._put_aside((self.active, before))
            self.active, self._kept = folder, None if code is None else KeptModules(code)
            if (folder, code) != (None, None):
                self._take_up((folder, code))
            importlib.invalidate_caches()

    def _put_aside(self, active: tuple[Path | None, TaskCode | None]) -> None:
        sys.meta_path.remove(self)
        mine = [name for name in sys.modules if self._is_found_here(name)]
        self._aside[active] = {name: sys.modules.pop(name) for name in mine}
        if self._is_added and str(active[0]) in sys.path:
            sys.path.remove(str(active[0]))

    def _take_up(self, active: tuple[Path | None, TaskCode | None]) -> None:
        sys.meta_path.insert(_position_of_path_finder(), self)
        again = self._aside.pop(active, {})
        sys.modules.update(again)
        self._found = {name for name in again if "." not in name}
        folder = active[0]
        self._is_added = folder is not None and str(folder) not in sys.path
        if self._is_added:
            sys.path.insert(_end_of_standard_library(), str(folder))

    def _is_found_here(self, name: str) -> bool:
        top = name.partition(".")[0]
        return top in self._found or self._is_code_folder(sys.modules.get(top))

    def _is_code_folder(self, module: ModuleType | None) -> bool:
        """Whether it is a package without `__init__.py` in the folder, which `sys.path` has found."""
        spec = getattr(module, "__spec__", None)
        if not isinstance(getattr(spec, "loader", None), NamespaceLoader):
            return False
        return any(Path(place).parent == self.active for place in module.__path__) if module is not None else False


_TASK_FOLDER = _TaskFolder()


def import_beside(folder: Path | None, code: TaskCode | None = None) -> None:
    """Let what is imported from now on be looked for in a task's code, and in its file's folder; null: in that of no file."""
    _TASK_FOLDER.activate(folder, code)


def module_names(folder: Path) -> list[str]:
    """Return the names under which what lies in a folder can be imported."""
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    return sorted({path.stem for path in folder.glob("*.py")}.union(packages))


def _position_of_path_finder() -> int:
    """Return where in `sys.meta_path` a finder comes before what searches `sys.path`."""
    return next((i for i, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))


def _end_of_standard_library() -> int:
    """Return the position in `sys.path` after the standard library, which is before what is installed."""
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {f"{path}/lib-dynload" for path in standard}
    return max((i + 1 for i, entry in enumerate(sys.path) if entry in standard), default=0)
