"""Trust in custom code: whether only the user, or root, can change its files and the folders above them.

Follows OpenSSH's StrictModes: every file, and each folder up to the root, belongs to the user or root and is writable by no
one else. The group may have write access if it is the user's private one: it has the user's name and no other member. Symbolic
links are followed step by step, and both the link's folder and its target are checked. A sticky folder like /tmp is allowed
further up, where others cannot rename the user's files, but not as the folder of the code: others could add a module there. An
access list is covered too, since the group bits of a file's mode show the maximum that any entry grants.

Code that fails this, or that is requested by a store that others can write, runs only after its hash was accepted. The hash
fixes its bytes, whoever may write to its files.
"""

import grp
import os
import pwd
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from depthrate.tasks.code.collect import is_installed
from depthrate.tasks.interface import TaskCode

ROOT = 0
STRICT_MODES = "DEPTHRATE_STRICT_MODES"
"""Variable: `off` allows code named on the command line to run from any folder. It does not affect code named by a store."""
_MAX_LINKS = 40
"""Maximal number of links on the way to a file, as in Linux."""
_HASH = re.compile(r"[0-9a-f]{32}")


def untrusted_reason(code: TaskCode, main: Path, *, named: bool) -> list[str]:
    """Return one problem per path that others can change, or an empty list for code that only this user can change.

    `main` is the task's file before links are resolved. For code `named` on the command line, root may run files of any owner:
    in a container they belong to the user outside it.
    """
    if is_installed(code.root) or (named and os.environ.get(STRICT_MODES) == "off"):
        return []
    files = [main, *(code.root / relative for relative, _ in code.files)]
    homes = {code.root.resolve()}
    homes |= {path.parent.resolve() for path in files[1:]}
    return distrust_of_paths(files, homes, check_owner=not (named and os.geteuid() == ROOT))


def distrust_of_paths(paths: Sequence[Path], homes: Collection[Path] = (), *, check_owner: bool = True) -> list[str]:
    """List the ways for others to change these files. Others must not add files to the folders `homes`."""
    problems: dict[str, None] = {}
    for path in paths:
        try:
            for step, status in _steps(path):
                if reason := _reason(step, status, homes, check_owner):
                    problems[f"{step} {reason}"] = None
        except OSError as error:
            problems[f"{path} cannot be checked ({error.strerror})"] = None
    return list(problems)


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder, link and file on the way to a path, from the root on, including the targets of links."""
    current, num_links = Path("/"), 0
    yield current, current.lstat()
    remaining = list(reversed(os.path.join(os.getcwd(), path).split("/")))
    while remaining:
        part = remaining.pop()
        if part in ("", "."):
            continue
        if part == "..":
            current = current.parent
            continue
        step = current / part
        status = step.lstat()
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            current = step
            continue
        num_links += 1
        if num_links > _MAX_LINKS:
            raise OSError(40, "too many symbolic links")
        target = os.readlink(step)
        current = Path("/") if target.startswith("/") else current
        remaining += reversed(target.split("/"))


def _reason(step: Path, status: os.stat_result, homes: Collection[Path], check_owner: bool) -> str | None:
    """Return why others can change a step of a path, or None."""
    if check_owner and status.st_uid not in (os.geteuid(), ROOT):
        return f"belongs to another user (id {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return None  # the mode of its folder decides who may replace a link
    for_all = status.st_mode & stat.S_IWOTH
    for_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status)
    if not (for_all or for_group):
        return None
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if is_sticky and step not in homes:
        return None
    writers = "everybody" if for_all else f"group {status.st_gid}"
    return f"can be written by {writers} (mode {stat.S_IMODE(status.st_mode):o})"


def _is_private_group(status: os.stat_result) -> bool:
    """Return whether a file's group is the private group of its owner."""
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and owner.pw_gid == group.gr_gid and set(group.gr_mem) <= {owner.pw_name}


def accept(content_hash: str) -> None:
    """Allow code with this hash to run from now on, whoever may write to its files.

    Raises:
        OSError: The acceptance cannot be stored.
    """
    folder = _accepted_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe without a reader must not block
    os.close(os.open(folder / content_hash, flags, 0o600))


def is_accepted(content_hash: str) -> bool:
    """Return whether this user has accepted the code with this hash."""
    folder = _accepted_folder()
    return is_hash(content_hash) and is_private_to_user(folder) and is_private_to_user(folder / content_hash)


def is_hash(text: str) -> bool:
    """Return whether a string has the form of a code hash."""
    return _HASH.fullmatch(text) is not None


def is_private_to_user(path: Path) -> bool:
    """Return whether the path exists, belongs to this user, is writable by no one else, and is not a link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_link, others = stat.S_ISLNK(status.st_mode), stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.geteuid() and not is_link and not status.st_mode & others


def _accepted_folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "depthrate" / "accepted-code"
