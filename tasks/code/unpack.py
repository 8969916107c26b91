"""Code unpacked to a cache folder named by its hash, so that the executed files are the files that were read."""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from depthrate.tasks.code.private_cache import in_private_cache, private_cache
from depthrate.tasks.code.trust import is_private_to_user
from depthrate.tasks.interface import TaskCode, TaskError
from depthrate.tasks.regular_file import read_regular

_UNUSED_S = 30 * 24 * 3600
"""Age in seconds at which unpacked code is deleted."""


def unpack(code: TaskCode) -> Path:
    """Return the folder with exactly this code, unpacking it if necessary.

    Raises:
        TaskError: The folder cannot be written.
    """
    try:
        return in_private_cache("code", lambda home: _unpack_in(home, code))
    except OSError as error:
        raise TaskError(f"the code of task file {code.main} cannot be unpacked: {error}") from error


def _unpack_in(home: Path, code: TaskCode) -> Path:
    folder = home / code.content_hash
    for _ in range(3):
        if _holds(folder, code):
            os.utime(folder)  # marks it as in use
            return folder
        if os.path.lexists(folder):  # corrupt: a non-empty folder cannot be replaced atomically
            with contextlib.suppress(FileNotFoundError):
                folder.rename(tempfile.mkdtemp(prefix=".damaged-", dir=home) + "/code")
        with tempfile.TemporaryDirectory(prefix=".", dir=home) as temporary:
            for relative, content in code.files:
                Path(temporary, relative).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                Path(temporary, relative).write_bytes(content)
                Path(temporary, relative).chmod(0o600)  # independent of the umask
            try:
                os.rename(temporary, folder)
            except OSError:
                if not os.path.lexists(folder):  # no other process was faster
                    raise
        _delete_unused(home)
    raise TaskError(f"{folder} changes after it is written. Stop the process that changes it and delete the folder.")


def unpacked_files(content_hash: str) -> tuple[Path, list[Path]]:
    """Return the folder for code with this hash, and its unpacked files (none if it is not unpacked)."""
    folder = private_cache("code") / content_hash
    return folder, sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def _holds(folder: Path, code: TaskCode) -> bool:
    """Return whether a folder holds exactly this code, byte for byte, and at most Python's byte code of it."""
    if not is_private_to_user(folder):
        return False
    contents, num_files = code.contents, 0
    try:
        for path in folder.rglob("*"):
            if "__pycache__" in path.relative_to(folder).parts:
                continue
            if not is_private_to_user(path):
                return False
            if not path.is_dir():
                num_files += 1
                expected = contents.get(path.relative_to(folder).as_posix())
                if expected is None or read_regular(path, len(expected)) != expected:
                    return False
    except OSError:  # another process replaces the folder, or a file is not regular or is larger
        return False
    return num_files == len(contents)


def _delete_unused(home: Path) -> None:
    oldest = time.time() - _UNUSED_S
    for folder in home.iterdir():
        with contextlib.suppress(OSError):
            if folder.lstat().st_mtime < oldest or folder.name.startswith(".damaged-"):
                shutil.rmtree(folder)
