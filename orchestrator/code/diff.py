"""Differences between two versions of a task's code, file by file."""

import difflib
from collections.abc import Mapping

MAX_LINES_SHOWN = 24
"""Maximum number of lines in `short_diff`."""


def changed_files(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return the files that differ, each with its number of removed and added lines."""
    changes = []
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            changes.append(f"{path} (removed)")
        elif path not in old:
            changes.append(f"{path} (new)")
        elif old[path] != new[path]:
            lines = difflib.ndiff(_lines(old[path]), _lines(new[path]))
            signs = [line[0] for line in lines]
            changes.append(f"{path} (-{signs.count('-')} +{signs.count('+')} lines)")
    return changes


def short_diff(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return the first lines of the differences, as `diff -u` prints them. A file that is not Python code has a single line."""
    lines: list[str] = []
    for path in sorted(old.keys() | new.keys()):
        old_content, new_content = old.get(path, b""), new.get(path, b"")
        if old_content == new_content:
            continue
        if not path.endswith(".py"):
            lines.append(f"{path} differs")
            continue
        names = (f"{path} (then)", f"{path} (now)")
        lines += difflib.unified_diff(_lines(old_content), _lines(new_content), *names, n=1, lineterm="")
    num_hidden = len(lines) - MAX_LINES_SHOWN
    return lines if num_hidden <= 0 else [*lines[:MAX_LINES_SHOWN], f"... {num_hidden} more lines"]


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()
