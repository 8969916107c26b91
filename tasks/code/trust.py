"""Whether a user's code is decided by that user alone: whose each file is, who may write to it, and to the folders above it.

As OpenSSH's StrictModes: every file, and each folder up to the root, is mine or root's and nobody else may write to it. The
group may where it is the user's private one: it has the user's name and no other member. Symbolic links are followed step by
step, and what each stands in and leads to is looked at. A sticky folder such as /tmp may lie further up, where nobody can
rename what is mine, but code does not lie in one itself: others could put a module beside it. An access list shows in a file's
mode as its group may do the most that any entry grants.

Code that fails this, or that a store which others write to asks for, runs once its hash was accepted: then it is known
byte by byte, whoever may write to its files.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from depthrate.tasks.code.collect import TaskCode

ROOT = 0
STRICT_MODES = "DEPTHRATE_STRICT_MODES"
"""Set to `off`, code that is named on the command line runs wherever it lies; never what a store names."""
_MAX_LINKS = 40
"""On the way to a file, as Linux itself has it."""
_HASH = re.compile(r"[0-9a-f]{32}")


def untrusted_reason(code: TaskCode, main: Path, *, named: bool) -> list[str]:
    """Return what lets others decide what a task's code is, a text for each path; none for code that is the user's alone.

    `main` is the task's own file as it was given, before links were resolved. For code that is `named` on the command line,
    root is not asked whose the files are: in a container they belong to the user outside it.
    """
    if _is_installed(code.root) or (named and os.environ.get(STRICT_MODES) == "off"):
        return []
    files = [main, *(code.root / relative for relative, _ in code.files)]
    homes = {code.root.resolve()}
    homes |= {path.parent.resolve() for path in files[1:]}
    return distrust_of_paths(files, homes, asks_owner=not (named and os.geteuid() == ROOT))


def _is_installed(folder: Path) -> bool:
    """Whether a folder is one in which this Python has what is installed, which is trusted as Python itself is."""
    return folder in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib", "platstdlib")}


def distrust_of_paths(paths: Sequence[Path], homes: Collection[Path] = (), *, asks_owner: bool = True) -> list[str]:
    """Return what lets others decide what these files hold; `homes` are folders in which nobody else may put a file."""
    problems: dict[str, None] = {}
    for path in paths:
        try:
            for step, status in _steps(path):
                if reason := _reason(step, status, homes, asks_owner):
                    problems[f"{step} {reason}"] = None
        except OSError as error:
            problems[f"{path} cannot be looked at ({error.strerror})"] = None
    return list(problems)


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder, link and file on the way to a path, from the root on, and on the way that each link leads."""
    here, num_links = Path("/"), 0
    yield here, here.lstat()
    left = list(reversed(os.path.join(os.getcwd(), path).split("/")))
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = here.parent
            continue
        step = here / part
        status = step.lstat()
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        num_links += 1
        if num_links > _MAX_LINKS:
            raise OSError(40, "too many symbolic links")
        target = os.readlink(step)
        here = Path("/") if target.startswith("/") else here
        left += reversed(target.split("/"))


def _reason(step: Path, status: os.stat_result, homes: Collection[Path], asks_owner: bool) -> str | None:
    """Return why others decide what stands at a step of a path; None where they do not."""
    if asks_owner and status.st_uid not in (os.geteuid(), ROOT):
        return f"belongs to another user (id {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return None  # its mode says nothing: who may replace it is said by its folder's
    for_all = status.st_mode & stat.S_IWOTH
    for_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status)
    if not (for_all or for_group):
        return None
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if is_sticky and step not in homes:
        return None
    whom = "everybody" if for_all else f"group {status.st_gid}"
    return f"can be written by {whom} (mode {stat.S_IMODE(status.st_mode):o})"


def _is_private_group(status: os.stat_result) -> bool:
    """Whether a file's group is that of its owner alone, as systems make one for each user."""
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and owner.pw_gid == group.gr_gid and set(group.gr_mem) <= {owner.pw_name}


def accept(content_hash: str) -> None:
    """Let code run from now on whose hash this is, whoever may write to its files.

    Raises:
        OSError: it cannot be written down.
    """
    folder = _accepted_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # where a pipe stands nobody would ever read it
    os.close(os.open(folder / content_hash, flags, 0o600))


def is_accepted(content_hash: str) -> bool:
    """Whether this user has accepted the code with this hash."""
    folder = _accepted_folder()
    return is_hash(content_hash) and is_private_to_user(folder) and is_private_to_user(folder / content_hash)


def is_hash(text: str) -> bool:
    """Whether a text has the form of a hash of code."""
    return _HASH.fullmatch(text) is not None


def is_private_to_user(path: Path) -> bool:
    """Whether something is there that belongs to this very user, that nobody else may write to, and that is no link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_link, others = stat.S_ISLNK(status.st_mode), stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.geteuid() and not is_link and not status.st_mode & others


def _accepted_folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "depthrate" / "accepted-code"
