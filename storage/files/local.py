"""Files of a folder on this machine: written whole, read only where they are files, and listed without those being written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depthrate.storage.files.full import FULL, StoreFullError, size_text
from depthrate.storage.files.paths import is_place_of_a_file

Stamp = tuple[Any, ...]
"""By which it is seen that a file was written anew; of no other use."""


def write_whole(path: str, content: bytes | Path, *, durable: bool) -> None:
    """Write a file, of bytes or of another: a reader sees the old content or the new, a killed writer leaves the old.

    Raises:
        StoreFullError: there is no room for it.
        OSError: it could not be written; the old content is still there.
    """
    try:
        _write_whole(path, content, durable=durable)
    except OSError as error:
        if error.errno not in FULL:
            raise
        needed = content.stat().st_size if isinstance(content, Path) else len(content)
        raise StoreFullError(error.errno or 0, path, needed) from None


def _write_whole(path: str, content: bytes | Path, *, durable: bool) -> None:
    folder, name = os.path.split(os.path.abspath(path))
    _make_folders(folder)
    aside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(aside, "wb") as file:
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
            else:
                file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        Path(aside).unlink(missing_ok=True)
        if isinstance(error, IsADirectoryError):
            raise UnfitFileError(
                f"{path} is a folder, where a file belongs; nothing was written: move it away"
            ) from None
        raise
    if durable:
        sync_folder(folder)


def move_whole(source: str, target: str) -> None:
    """Give a file another path, durably, whatever stood there.

    Raises:
        FileNotFoundError: there is no such file.
    """
    folder = os.path.dirname(target)
    _make_folders(folder)
    os.replace(source, target)
    sync_folder(folder)


def _make_folders(folder: str) -> None:
    """Make a folder and those above it that are not there, durably: whoever finds one relies on it without a look."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _make_folders(above)
    os.makedirs(folder, exist_ok=True)
    sync_folder(above)


def sync_folder(folder: str) -> None:
    """Bring a folder's names to the disk: without that a file that was synced may be nameless after a power cut."""
    opened = None
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(opened)
    except OSError as error:
        # file systems that have no such thing, and a folder that may be written to and not read
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        if opened is not None:
            os.close(opened)


class UnfitFileError(OSError):
    """What stands in a file's place is no file, or larger than the file can be; trying again changes nothing."""


_WORDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
)


def require_regular(path: str, root: str) -> str:
    """Return where the file is that stands at a path, behind a link where that stays below `root`; nothing is opened for it.

    Raises:
        UnfitFileError: there is something else.
        FileNotFoundError: there is nothing.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        return path
    what = next((word for is_it, word in _WORDS if is_it(mode)), "no file")
    if stat.S_ISLNK(mode):
        target, top = os.path.realpath(path), os.path.realpath(root)
        if not os.path.exists(target):
            what = f"a link to {target}, where nothing is"
        elif os.path.commonpath([top, target]) != top:
            what = f"a link out of {root}, to {target}"
        elif os.path.isfile(target):
            return target
        else:
            what = f"a link to {target}, which is no file"
    raise _unfit(path, f"is {what}, where a file belongs")


def open_regular(path: str, root: str) -> int:
    """Return the descriptor of a file opened for reading: never of a pipe or a device, which could keep us waiting.

    Raises:
        UnfitFileError: it is no file, or a link that leads out of `root`.
        FileNotFoundError: there is none.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = os.open(require_regular(path, root), flags)
    if not stat.S_ISREG(os.fstat(opened).st_mode):  # replaced since
        os.close(opened)
        raise _unfit(path, "is no file")
    return opened


def read_whole(path: str, root: str, most_bytes: int | None = None) -> bytes:
    """Return a file's content.

    Raises:
        UnfitFileError: it is no file below `root`, or has more than `most_bytes`.
        FileNotFoundError: there is none.
    """
    with open(open_regular(path, root), "rb") as file:
        require_size(path, os.fstat(file.fileno()).st_size, most_bytes)
        return file.read() if most_bytes is None else file.read(most_bytes)


def require_size(path: str, size: int, most_bytes: int | None) -> None:
    """Check that a file can be read whole.

    Raises:
        UnfitFileError: it has more than `most_bytes`.
    """
    if most_bytes is not None and size > most_bytes:
        raise _unfit(path, f"has {size_text(size)}, where such a file has at most {size_text(most_bytes)}")


def _unfit(path: str, what: str) -> UnfitFileError:
    return UnfitFileError(f"{path} {what}; it was not read: move it away, or put the file back from a backup")


def is_hidden(path: str) -> bool:
    """Whether a file is one that is being written, or otherwise none of ours."""
    return path.rpartition("/")[2].startswith(".")


def walk_stamps(folder: str, root: str) -> Iterator[tuple[str, Stamp]]:
    """Yield (path below `root`, what changes when it is written anew) of the files in a local folder, as `walk` does."""
    for path, _ in walk(folder, len(root) + 1):
        with contextlib.suppress(FileNotFoundError):
            found = _stat(f"{root}/{path}")
            yield path, (found.st_size, found.st_mtime_ns, found.st_ino)


def size_of(path: str) -> int:
    """Return a file's size in bytes; 0 for a link that leads to nothing, which stands there all the same.

    Raises:
        FileNotFoundError: there is nothing.
    """
    try:
        return os.stat(path).st_size
    except OSError:
        if os.path.islink(path):
            return 0
        raise


def _stat(path: str) -> os.stat_result:
    """Return what is known of a file, or of a link where it leads to nothing."""
    try:
        return os.stat(path)
    except OSError:
        return os.lstat(path)


def walk(folder: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield (path, bytes) of the files below a local folder in order; what vanishes meanwhile is no error.

    Folders behind links are not looked into. Links, pipes, devices and folders are listed where a file of a store belongs, so
    that whoever reads it hears what stands there, and elsewhere passed over.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and not is_place_of_a_file(entry.path[start:]):
                yield from walk(entry.path, start)
            elif not is_folder and _is_file(entry):
                yield entry.path[start:], entry.stat().st_size
            elif is_place_of_a_file(path := entry.path[start:]):
                yield path, 0


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False
