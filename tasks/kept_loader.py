"""Modules whose source was read before: what is executed is that, whatever has become of the file since."""

from __future__ import annotations

import linecache
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

from depthrate.tasks.task_code import TaskCode


class KeptLoader(SourceFileLoader):
    """Executes a content in the name of a file; no byte code of the file is used or written."""

    def __init__(self, fullname: str, path: str, content: bytes):
        super().__init__(fullname, path)
        self._content = content

    def get_data(self, path: str) -> bytes:
        """Return the kept source; what else lies beside it is read from there."""
        return self._content if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> dict[str, float]:
        """Say that nothing is known of the file, so that its byte code is left alone."""
        raise OSError(f"{path} is not read")

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the compiled source, and let tracebacks show its lines and not those of the file as it is now."""
        lines = self._content.decode(errors="replace").splitlines(keepends=True)
        linecache.cache[self.path] = (len(self._content), None, lines, self.path)
        return super().get_code(fullname)


def kept_spec(fullname: str, code: TaskCode, relative: str) -> ModuleSpec | None:
    """Return how a file of the code is imported under a name.

    Raises:
        ImportError: it is an extension, which is loaded from the disk, and another one by now.
    """
    path, content = code.root / relative, code.contents[relative]
    if not relative.endswith(".py"):
        if not path.is_file() or path.read_bytes() != content:
            raise ImportError(f"{path} is not the file that this launch began with", name=fullname)
        return spec_from_file_location(fullname, path, loader=ExtensionFileLoader(fullname, str(path)))
    return spec_from_file_location(
        fullname,
        path,
        loader=KeptLoader(fullname, str(path), content),
        submodule_search_locations=[str(path.parent)] if path.name == "__init__.py" else None,
    )


class KeptModules:
    """Finds the modules of a task's code, by their names, at every depth."""

    def __init__(self, code: TaskCode):
        self.code = code
        self._files = {_module_name(path): path for path, _ in code.files}
        names = [name.split(".") for name in self._files]
        self._folders = {".".join(parts[:end]) for parts in names for end in range(1, len(parts))} - self._files.keys()
        """Packages without an `__init__.py`."""

    def find(self, fullname: str, path: list[str] | None) -> ModuleSpec | None:
        """Return how a module of the code is imported; None for what is not of it.

        `path` is that of the package around it, which may be another package of the same name.
        """
        parent, _, _ = fullname.rpartition(".")
        if path is not None and str(self.code.root / Path(*parent.split("."))) not in path:
            return None
        if fullname in self._files:
            return kept_spec(fullname, self.code, self._files[fullname])
        return self._folder_spec(fullname, path) if fullname in self._folders else None

    def _folder_spec(self, fullname: str, path: list[str] | None) -> ModuleSpec | None:
        """Return a package that is only a folder, unless there is a real one of that name, which is what is meant."""
        found = PathFinder.find_spec(fullname, path)
        if found is not None and found.loader is not None and found.origin is not None:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(self.code.root / Path(*fullname.split(".")))]
        return spec


def _module_name(path: str) -> str:
    parts = path.split("/")
    parts[-1] = parts[-1].partition(".")[0]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
