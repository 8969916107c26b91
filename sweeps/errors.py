"""What is said of a sweep that cannot be read or run, and how much one may ask for before anything is expanded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from depthrate.tasks.parameters import format_value, nearest

MAX_TRIALS = 1_000_000
"""Trials of a sweep, values of an axis, proposals of a search; a sweep file's `max_trials` allows more."""


class SweepError(ValueError):
    """A sweep is not understood or cannot run; the message names the place in the sweep file."""


class NoSweepFileError(SweepError):
    """There is no sweep file, and no shipped sweep, of that name."""


def kind_of(value: Any) -> str:
    """Return what a value is, in words."""
    names: dict[type, str] = {dict: "a mapping", list: "a list", bool: "a truth value"}
    if value is None:
        return "missing"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return names.get(type(value)) or f"the value {format_value(value)}"


def require_keys(content: Mapping[str, Any], allowed: Iterable[str], place: str) -> None:
    """Check that a mapping has no other keys than these.

    Raises:
        SweepError: it has, with the nearest allowed one.
    """
    allowed = list(allowed)
    unknown = [
        f"unknown key {format_value(key)} in {place}{nearest(key, allowed) if isinstance(key, str) else ''}"
        for key in content
        if key not in allowed
    ]
    if unknown:
        raise SweepError(f"{'; '.join(unknown)} (known: {', '.join(allowed)})")


def check_count(count: int, most: int) -> None:
    """Check that a sweep has not more trials than it may have.

    Raises:
        SweepError: it has, with how to allow them.
    """
    if count > most:
        raise SweepError(
            f"more than {most:,} trials; split the sweep, or allow more with max_trials (it has {counted(count)})"
        )


def counted(number: float) -> str:
    """Return a whole number for people, however large it is."""
    return f"{number:,.0f}" if number < 10**15 else "more than 10^15"
