"""Cache folders that only the user can write. Their contents are executed or trusted."""

import atexit
import errno
import functools
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from depthrate.tasks.code.trust import distrust_of_paths, is_private_to_user

log = logging.getLogger("depthrate")
T = TypeVar("T")
_full: dict[Path, str] = {}
"""Folder that was full -> message."""


def private_cache(name: str) -> Path:
    """Return the folder `name` below XDG_CACHE_HOME, else ~/.cache, created with mode 700 if necessary.

    If others can write to it or to a folder above it, or it is not writable or was full, return a folder of this process, which
    is deleted at exit, and log the cause.

    Raises:
        OSError: There is no folder for temporary files.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "depthrate" / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # A umask of 002 leaves modes that let others write.
        _restrict(folder.parent, ~0o022)
        _restrict(folder, 0o700)
        problems = distrust_of_paths([folder], {folder.resolve()})
        problems += [_full[folder]] if folder in _full else []
        if not problems and not os.access(folder, os.W_OK):
            problems = [f"{folder} is not writable"]
    except OSError as error:
        problems = [str(error)]
    return _folder_of_process(name, problems[0]) if problems else folder


def in_private_cache(name: str, use: Callable[[Path], T]) -> T:
    """Return `use(private_cache(name))`. If that folder is full, use a folder of this process instead, from then on.

    Raises:
        OSError: `use` raised it, for instance because both folders are full.
    """
    folder = private_cache(name)
    try:
        return use(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if is_of_process(folder):
            message = f"{error.strerror}. Set XDG_CACHE_HOME or TMPDIR to a folder with space"
            raise OSError(error.errno, message, str(folder)) from error
        _full[folder] = f"{folder} is full ({error.strerror})"
    return in_private_cache(name, use)


def is_of_process(folder: Path) -> bool:
    """Return whether a folder of `private_cache` belongs to this process alone."""
    return folder.parent.name.startswith(_PREFIX)


def is_private_file(path: Path) -> bool:
    """Return whether `path` is a regular file that belongs to this user, has one name and is writable by no one else."""
    if not is_private_to_user(path):
        return False
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1  # no hard link to another file of the user


def _restrict(folder: Path, mask: int) -> None:
    """Remove mode bits outside `mask` from a folder of this user."""
    status = folder.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & ~mask:
        folder.chmod(stat.S_IMODE(status.st_mode) & mask)


_PREFIX = "depthrate-cache-"


@functools.cache
def _folder_of_process(name: str, problem: str) -> Path:
    log.warning(
        "%s, so others could change executed code, or nothing can be stored. This process uses a temporary folder for "
        "%r. Set XDG_CACHE_HOME to a folder that only you can write.",
        *(problem, name),
    )
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / name).mkdir(mode=0o700)
    return home / name
