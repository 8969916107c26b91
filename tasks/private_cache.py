"""Folders of the user's cache that nobody else can write to: what lies in them is executed, or believed."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from depthrate.tasks.code.trust import distrust_of_paths

log = logging.getLogger("depthrate")


def private_cache(name: str) -> Path:
    """Return the folder of this name below XDG_CACHE_HOME, else ~/.cache, with mode 700; it is created if necessary.

    Where others can write to it or to a folder above it, or it cannot be written at all, this is a folder of this process,
    which is deleted with it; a warning names the cause.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "depthrate" / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # older versions and a umask of 002 left modes that let others write
        _restrict(folder.parent, ~0o022)
        _restrict(folder, 0o700)
        problems = distrust_of_paths([folder], {folder.resolve()})
        if not problems and not os.access(folder, os.W_OK):
            problems = [f"{folder} cannot be written"]
    except OSError as error:
        problems = [str(error)]
    return _folder_of_process(name, problems[0]) if problems else folder


def is_of_process(folder: Path) -> bool:
    """Whether a folder of `private_cache` belongs to this process alone."""
    return folder.parent.name.startswith(_PREFIX)


def is_private_file(path: Path) -> bool:
    """Whether a file is there that is this user's own, that nobody else can write to, and that is no link, pipe or device."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_own = status.st_uid == os.geteuid() and status.st_nlink == 1  # no file of ours from elsewhere
    return stat.S_ISREG(status.st_mode) and is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _restrict(folder: Path, mask: int) -> None:
    """Take from the mode of a folder of this user what the mask does not have."""
    status = folder.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & ~mask:
        folder.chmod(stat.S_IMODE(status.st_mode) & mask)


_PREFIX = "depthrate-cache-"


@functools.cache
def _folder_of_process(name: str, problem: str) -> Path:
    log.warning(
        "%s, so that others could decide what is executed, or nothing is kept there: this process keeps %r in a folder of its "
        "own; set XDG_CACHE_HOME to a folder of yours that only you can write to",
        *(problem, name),
    )
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / name).mkdir(mode=0o700)
    return home / name
