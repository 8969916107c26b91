"""Errors of a user's code: the line in the user's file, and the cure for a failed import."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

from depthrate.tasks.code.collect import TaskCode
from depthrate.tasks.parameters import nearest

_OURS = [
    Path(__file__).resolve().parents[2] / room
    for room in ("src", "orchestrator", "sweeps", "tasks", "storage", "slurm")
]


def explain_import_error(error: Exception, unpacked: Path, code: TaskCode) -> str:
    """Say what went wrong in a task file or beside it: the line, and for an import where it was looked for and what to do."""
    folder = code.root
    where = innermost_line(error, unpacked)
    if not isinstance(error, ImportError):
        return f"{where}{type(error).__name__}: {error}"
    missing = error.name or ""
    top = missing.partition(".")[0]
    if top in sys.stdlib_module_names and top in module_names(folder):
        return f"{where}{error}; {top!r} is a name of the standard library, which comes first: rename {folder / top}"
    if not isinstance(error, ModuleNotFoundError) or not top:
        return f"{where}{error}"
    if unforeseen := unforeseen_import(error, code):
        return f"{where}{unforeseen}"
    return (
        f"{where}no module named {missing!r}{nearest(missing, module_names(folder))}; looked in {folder} (the task "
        f"file's folder) and in what is installed for {sys.executable}; put {missing.replace('.', '/')}.py beside the "
        f"task file, or install it there"
    )


def unforeseen_import(error: ModuleNotFoundError, code: TaskCode) -> str | None:
    """Say of a module that was not found that it lies beside the task's file, and why it is no part of the task's code."""
    name = error.name or ""
    if name.partition(".")[0] not in module_names(code.root):
        return None
    return (
        f"{name}, which lies in {code.root}, is imported, but not by its name in the task file or in what that imports, so "
        f"that it is not part of the task's code; write `import {name}`"
    )


def module_names(folder: Path) -> list[str]:
    """Return the names under which what lies in a folder can be imported."""
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    return sorted({path.stem for path in folder.glob("*.py")}.union(packages))


def innermost_line(error: BaseException, folder: Path | None = None) -> str:
    """Return the last line of a user's that an error came through, for the beginning of a message; an empty text for none.

    A user's line is one in `folder`; by default one that is neither installed nor depthrate's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if folder is not None:
        lines = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    else:
        lines = [frame for frame in frames if not _is_ours_or_installed(Path(frame.filename))]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}: `{lines[-1].line}`: " if lines else ""


def _is_ours_or_installed(path: Path) -> bool:
    if "site-packages" in path.parts or path.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    return any(path.resolve().is_relative_to(room) for room in _OURS)
