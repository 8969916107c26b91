"""Source of a custom task: its file and the local modules it imports, found by parsing, without execution.

If an import computes its name at run time, all modules of the folder belong to the code. Installed packages do not. Their
versions are recorded with every trial.
"""

import ast
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from depthrate.errors import InputError
from depthrate.tasks.code.parse import parse_source
from depthrate.tasks.interface import TaskCode
from depthrate.tasks.regular_file import read_regular

MAX_FILES = 1000
MAX_FILE_BYTES = 2**26
"""Maximal size of a file of stored code."""
_COMPUTED = {
    *("import_module", "__import__", "find_spec", "spec_from_file_location", "SourceFileLoader"),
    *("iter_modules", "walk_packages", "run_path", "run_module", "exec", "resolve_name"),
}
"""Functions that import or execute a module named by an argument."""
_SUFFIXES = (*EXTENSION_SUFFIXES, ".py")
"""Suffixes of a module's file, in Python's search order."""
_NOT_LOCAL = sys.stdlib_module_names | {"depthrate"}


def real_path(path: Path) -> Path:
    """Resolve links to an absolute path. A link to itself stays as it is (`Path.resolve` raises)."""
    return Path(os.path.realpath(path))


class TooManyFilesError(InputError):
    """More than `MAX_FILES` files belong to a task."""


def collect_code(path: Path, root: Path, *, siblings: bool = True) -> TaskCode:
    """Read a task's file and, recursively, the modules below `root` that it imports.

    Without `siblings`, only modules of the same package count, as in a folder with all installed packages.

    Raises:
        OSError: A file cannot be read.
        TooManyFilesError: All modules of the folder belong to the task, and they are too many.
    """
    main = path.relative_to(root).as_posix()
    top = None if siblings else main.partition("/")[0].removesuffix(".py")
    collector = _Collector(root, top)
    collector.add(path)
    return TaskCode(root, main, tuple(sorted(collector.files.items())))


def code_of_module(module_file: str, name: str) -> TaskCode | None:
    """Read the code of a module imported by its name, or return None if it has no source file.

    Raises:
        OSError, TooManyFilesError: See `collect_code`.
    """
    path = Path(module_file)
    if path.suffix != ".py" or not path.is_file():
        return None
    parts = len(name.split(".")) + (path.name == "__init__.py")
    root = path.parents[parts - 1]
    return collect_code(path, root, siblings=not is_installed(root))


def is_installed(folder: Path) -> bool:
    """Return whether a folder holds this Python's installed packages, which are trusted like Python itself."""
    return folder in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib", "platstdlib")}


class _Collector:
    """Follows imports from file to file."""

    def __init__(self, root: Path, top: str | None):
        self._root, self._top = root, top
        self.files: dict[str, bytes] = {}
        self._has_all = False

    def add(self, path: Path) -> None:
        """Add a file and its imports."""
        name = path.relative_to(self._root).as_posix()
        if name in self.files:
            return
        if len(self.files) >= MAX_FILES:
            raise TooManyFilesError(
                f"more than {MAX_FILES} files in {self._root} belong to the task, since it imports modules by computed names "
                "and all modules of the folder count. Move the task and its modules to a separate folder."
            )
        self.files[name] = content = read_regular(path, MAX_FILE_BYTES)
        if path.suffix != ".py":
            return
        try:
            tree = parse_source(content)
        except (SyntaxError, ValueError):
            return  # reported on import
        package = path.parent.relative_to(self._root).parts
        for module in _imports(tree, package):
            if module is not None:
                self._add_module(module)
            elif not self._has_all:
                self._has_all = True
                self._add_below(self._root if self._top is None else self._root / self._top)

    def _add_module(self, module: tuple[str, ...]) -> None:
        """Add a module and the packages around it below the root."""
        if not module or module[0] in _NOT_LOCAL or (self._top is not None and module[0] != self._top):
            return
        folder = self._root
        for index, part in enumerate(module):
            if part == "*":
                self._add_below(folder)
                return
            if (folder / part / "__init__.py").is_file():
                self.add(folder / part / "__init__.py")
                folder = folder / part
            elif file := next((path for s in _SUFFIXES if (path := folder / f"{part}{s}").is_file()), None):
                self.add(file)
                return
            elif (folder / part).is_dir() and index < len(module) - 1:
                folder = folder / part
            else:
                return

    def _add_below(self, folder: Path) -> None:
        """Add every module of a folder and its packages."""
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if path.suffix == ".py" and path.is_file() and path.stem.isidentifier():
                if path.relative_to(self._root).parts[0].removesuffix(".py") not in _NOT_LOCAL:
                    self.add(path)
            elif path.name.isidentifier() and path.name not in ("__pycache__", *_NOT_LOCAL) and path.is_dir():
                self._add_below(path)


def _imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...] | None]:
    """Yield the parts of the module's name for every import, and None for one with a computed name.

    `package` holds the parts of the file's package, for relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield module
            yield from ((*module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _function_name(node.func) in _COMPUTED:
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and _function_name(node.func) in _BY_NAME:
                yield tuple(name.value.lstrip(".").split("."))
            else:
                yield None


_BY_NAME = ("import_module", "__import__", "find_spec")


def _function_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
