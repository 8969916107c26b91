"""Code unpacked below the user's cache, in a folder named by its hash, so that the executed files are those that were read."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from depthrate.tasks.code.collect import TaskCode
from depthrate.tasks.code.trust import is_private_to_user
from depthrate.tasks.interface import TaskError
from depthrate.tasks.private_cache import private_cache
from depthrate.tasks.regular_file import read_regular

_UNUSED_S = 30 * 24 * 3600
"""Age in seconds at which unpacked code is deleted."""


def unpack(code: TaskCode) -> Path:
    """Return the folder that holds this code and nothing else, after unpacking it there if need be.

    Raises:
        TaskError: it cannot be written.
    """
    try:
        home = private_cache("code")
        folder = home / code.content_hash
        for _ in range(3):
            if _holds(folder, code):
                os.utime(folder)  # it is in use
                return folder
            if os.path.lexists(folder):  # damaged; a folder with content cannot be replaced in one step
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(tempfile.mkdtemp(prefix=".damaged-", dir=home) + "/code")
            aside = Path(tempfile.mkdtemp(prefix=".", dir=home))
            for relative, content in code.files:
                (aside / relative).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (aside / relative).write_bytes(content)
                (aside / relative).chmod(0o600)  # whatever the umask says
            try:
                aside.rename(folder)
            except OSError:  # another process was faster
                shutil.rmtree(aside, ignore_errors=True)
            _delete_unused(home)
    except OSError as error:
        raise TaskError(f"the code of task file {code.main} cannot be unpacked: {error}") from error
    raise TaskError(
        f"{folder} does not keep what is written there: something changes it; delete it, and stop what does"
    )


def unpacked_files(content_hash: str) -> tuple[Path, list[Path]]:
    """Return the folder of code with this hash, and its files as they were unpacked; none where it is not."""
    folder = private_cache("code") / content_hash
    return folder, sorted(path for path in folder.rglob("*") if path.is_file())


def _holds(folder: Path, code: TaskCode) -> bool:
    """Whether a folder holds this code, byte by byte, and nothing else."""
    if not is_private_to_user(folder):
        return False
    contents, num_files = code.contents, 0
    try:
        for path in folder.rglob("*"):
            if not is_private_to_user(path):
                return False
            if not path.is_dir():
                num_files += 1
                expected = contents.get(path.relative_to(folder).as_posix())
                if expected is None or read_regular(path, len(expected)) != expected:
                    return False
    except OSError:  # another process puts a whole one in its place, or it is no file, or larger
        return False
    return num_files == len(contents)


def _delete_unused(home: Path) -> None:
    oldest = time.time() - _UNUSED_S
    for folder in home.iterdir():
        with contextlib.suppress(OSError):
            if folder.lstat().st_mtime < oldest or folder.name.startswith(".damaged-"):
                shutil.rmtree(folder)
