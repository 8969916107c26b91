"""Errors in custom code: the line in the user's file, and the fix for a failed import."""

import sys
import sysconfig
import traceback
from pathlib import Path

from depthrate.tasks.interface import TaskCode
from depthrate.tasks.parameters import nearest

_PRODUCT_FOLDERS = [
    Path(__file__).resolve().parents[2] / package
    for package in ("src", "orchestrator", "sweeps", "tasks", "storage", "slurm")
]


def explain_import_error(error: Exception, unpacked: Path, code: TaskCode) -> str:
    """Format an error in a task's code: its line, and for a failed import the searched folders and the fix."""
    folder = code.root
    line, message = innermost_line(error, unpacked), str(error).replace(str(unpacked), str(folder))
    if not isinstance(error, ImportError):
        return f"{line}{type(error).__name__}: {message}"
    missing = error.name or ""
    top = missing.partition(".")[0]
    if top in sys.stdlib_module_names and top in module_names(folder):
        return f"{line}{message}. {top!r} is a standard library module, which takes precedence. Rename {folder / top}."
    if not isinstance(error, ModuleNotFoundError) or not top:
        return f"{line}{message}"
    if unforeseen := unforeseen_import(error, code):
        return f"{line}{unforeseen}"
    return (
        f"{line}no module named {missing!r}{nearest(missing, module_names(folder))}. Searched {folder} (the task "
        f"file's folder) and the packages of {sys.executable}. Add {missing.replace('.', '/')}.py to that folder, or "
        f"install the package."
    )


def unforeseen_import(error: ModuleNotFoundError, code: TaskCode) -> str | None:
    """Explain that a missing module is in the task's folder but not part of its code, or return None."""
    name = error.name or ""
    if name.partition(".")[0] not in module_names(code.root):
        return None
    return (
        f"{name} in {code.root} is imported, but not by name in the task's code, so it is not part of that code. "
        f"Write `import {name}`."
    )


def module_names(folder: Path) -> list[str]:
    """Return the importable names in a folder."""
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    return sorted({path.stem for path in folder.glob("*.py")}.union(packages))


def innermost_line(error: BaseException, folder: Path | None = None) -> str:
    """Return the last user line that an error passed through, as a prefix of a message, or an empty str.

    User lines are the lines of files in `folder`, by default all that belong neither to installed packages nor to depthrate.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if folder is not None:
        lines = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    else:
        lines = [frame for frame in frames if not _is_product_or_installed(Path(frame.filename))]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}: `{lines[-1].line}`: " if lines else ""


def _is_product_or_installed(path: Path) -> bool:
    if "site-packages" in path.parts or path.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    return any(path.resolve().is_relative_to(folder) for folder in _PRODUCT_FOLDERS)
