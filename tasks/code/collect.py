"""The source of a user's task: its file and the modules beside it that it imports, found by reading, without running them.

An import whose name is computed while it runs cannot be read off: where there is one, all modules of the folder belong to the
code. What is installed does not; its versions stand in every trial's record.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from depthrate.tasks.regular_file import read_regular

MAX_FILES = 1000
MAX_FILE_BYTES = 2**26
"""Of a larger file a store keeps no code."""
_COMPUTED = {
    *("import_module", "__import__", "find_spec", "spec_from_file_location", "SourceFileLoader"),
    *("iter_modules", "walk_packages", "run_path", "run_module", "exec", "resolve_name"),
}
"""What imports or executes a module by a name that is an argument."""
_NOT_LOCAL = sys.stdlib_module_names | {"depthrate"}


@dataclass(frozen=True)
class TaskCode:
    """The files that decide what a task does, as they were when they were read."""

    root: Path = field(compare=False)
    """The folder that the paths are relative to, from which the modules are imported."""
    main: str
    """The task's own file."""
    files: tuple[tuple[str, bytes], ...]
    """(path, content) of all of them, in order."""

    @property
    def contents(self) -> Mapping[str, bytes]:
        """Path -> content."""
        return dict(self.files)

    @functools.cached_property
    def content_hash(self) -> str:
        """The name of this version, as in a store: 32 hex digits of sha256 over the names and hashes of its files."""
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in self.files}
        index = json.dumps({"files": hashes, "main": self.main}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(index.encode()).hexdigest()[:32]


def real_path(path: Path) -> Path:
    """Return where a path leads, absolute; one of a link to itself stays as it is (`Path.resolve` raises)."""
    return Path(os.path.realpath(path))


class TooManyFilesError(ValueError):
    """More files belong to a task than anybody means."""


def collect_code(path: Path, root: Path, *, siblings: bool = True) -> TaskCode:
    """Return a task file's code: itself and, again and again, what it imports below `root`.

    Without `siblings` only what lies in the same package counts: where all that is installed lies beside it.

    Raises:
        OSError: a file cannot be read.
        TooManyFilesError: all modules of the folder belong to it, and they are too many.
    """
    main = path.relative_to(root).as_posix()
    top = None if siblings else main.partition("/")[0].removesuffix(".py")
    collector = _Collector(root, top)
    collector.add(path)
    return TaskCode(root, main, tuple(sorted(collector.files.items())))


def code_of_module(module_file: str, name: str) -> TaskCode | None:
    """Return the code of a task in a module that was imported by its name; None for one that is no source file.

    Raises:
        OSError, TooManyFilesError: see `collect_code`.
    """
    path = Path(module_file)
    if path.suffix != ".py" or not path.is_file():
        return None
    parts = len(name.split(".")) + (path.name == "__init__.py")
    root = path.parents[parts - 1]
    installed = {Path(sysconfig.get_path(each)) for each in ("purelib", "platlib", "stdlib", "platstdlib")}
    return collect_code(path, root, siblings=root not in installed)


class _Collector:
    """Follows imports from file to file."""

    def __init__(self, root: Path, top: str | None):
        self._root, self._top = root, top
        self.files: dict[str, bytes] = {}
        self._has_all = False

    def add(self, path: Path) -> None:
        """Take a file, and what it imports."""
        name = path.relative_to(self._root).as_posix()
        if name in self.files:
            return
        if len(self.files) >= MAX_FILES:
            raise TooManyFilesError(
                f"more than {MAX_FILES} files in {self._root} belong to the task: it imports modules by computed names, so "
                "that all beside it count; put the task and what it needs into a folder of their own"
            )
        self.files[name] = content = read_regular(path, MAX_FILE_BYTES)
        if path.suffix != ".py":
            return
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            return  # to be said when it is imported
        package = path.parent.relative_to(self._root).parts
        for module, is_computed in _imports(tree, package):
            if is_computed:
                self._add_all()
            else:
                self._add_module(module)

    def _add_module(self, module: tuple[str, ...]) -> None:
        """Take a module with the packages around it, as far as they lie below the root."""
        if not module or module[0] in _NOT_LOCAL or (self._top is not None and module[0] != self._top):
            return
        place = self._root
        for index, part in enumerate(module):
            if part == "*":
                self._add_below(place)
                return
            if (place / part / "__init__.py").is_file():
                self.add(place / part / "__init__.py")
                place = place / part
            elif found := next((f for f in _module_files(place, part) if f.is_file()), None):
                self.add(found)
                return
            elif (place / part).is_dir() and index < len(module) - 1:
                place = place / part
            else:
                return

    def _add_all(self) -> None:
        if not self._has_all:
            self._has_all = True
            self._add_below(self._root if self._top is None else self._root / self._top)

    def _add_below(self, folder: Path) -> None:
        """Take every module of a folder and of the packages in it."""
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if path.suffix == ".py" and path.is_file() and path.stem.isidentifier():
                if path.relative_to(self._root).parts[0].removesuffix(".py") not in _NOT_LOCAL:
                    self.add(path)
            elif path.name.isidentifier() and path.name not in ("__pycache__", *_NOT_LOCAL) and path.is_dir():
                self._add_below(path)


def _module_files(folder: Path, name: str) -> list[Path]:
    """Return where a module of this name may stand, in the order in which Python looks."""
    return [folder / f"{name}{suffix}" for suffix in (*EXTENSION_SUFFIXES, ".py")]


def _imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield (module's parts, False) of every import, wherever it stands, and ((), True) for one with a computed name.

    `package` are the parts of the package that the file lies in, for relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((tuple(alias.name.split(".")), False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            named = (*base, *(node.module.split(".") if node.module else ()))
            yield named, False
            yield from (((*named, alias.name), False) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node.func) in _COMPUTED:
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str) and _called(node.func) in _BY_NAME:
                yield tuple(given.value.lstrip(".").split(".")), False
            else:
                yield (), True


_BY_NAME = ("import_module", "__import__", "find_spec")


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
