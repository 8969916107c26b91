"""What differs between two versions of a task's source, file by file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

SHOWN_LINES = 24
"""Of a short difference."""


def changed_files(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return the files that are not the same in both, each with how many lines went and came."""
    words = []
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            words.append(f"{path} (no longer part of it)")
        elif path not in old:
            words.append(f"{path} (new)")
        elif old[path] != new[path]:
            lines = difflib.ndiff(_lines(old[path]), _lines(new[path]))
            signs = [line[0] for line in lines]
            words.append(f"{path} (-{signs.count('-')} +{signs.count('+')} lines)")
    return words


def unified_diff(old: Mapping[str, bytes], new: Mapping[str, bytes], old_name: str, new_name: str) -> list[str]:
    """Return the differences as `diff -u` shows them; those of files that are no text in one line."""
    lines: list[str] = []
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path, b""), new.get(path, b"")
        if before == after:
            continue
        if not path.endswith(".py"):
            lines.append(f"{path} differs")
            continue
        names = (f"{path} ({old_name})", f"{path} ({new_name})")
        lines += difflib.unified_diff(_lines(before), _lines(after), *names, n=1, lineterm="")
    return lines


def short_diff(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return the first lines of the differences."""
    lines = unified_diff(old, new, "then", "now")
    more = len(lines) - SHOWN_LINES
    return lines if more <= 0 else [*lines[:SHOWN_LINES], f"... {more} more lines"]


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()
