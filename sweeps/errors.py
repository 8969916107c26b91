"""Errors of sweeps that cannot be read or run, and the limit on trials.

InputError
  SweepError            a sweep is invalid
    NoSweepFileError    no file or shipped sweep has the name
  ExpressionError       arithmetic of `derive` or of a fit's x is invalid
  MemoryLimitError      a trial needs more memory than a worker has
"""

from collections.abc import Iterable, Mapping
from typing import Any

from depthrate.errors import InputError
from depthrate.tasks.parameters import format_value, nearest

MAX_TRIALS = 1_000_000
"""Default maximum of trials per sweep, values per axis and proposals per search. `max_trials` of a sweep raises it."""


class SweepError(InputError):
    """A sweep is invalid or cannot run. The message names the place in the sweep file."""


class NoSweepFileError(SweepError):
    """No sweep file and no shipped sweep has that name."""


class ExpressionError(InputError):
    """An expression is not arithmetic, has an unknown name, or has no finite value."""


class MemoryLimitError(InputError):
    """A trial needs more memory than a worker has, even if it runs alone."""


def kind_of(value: Any) -> str:
    """Describe a value for an error message."""
    names: dict[type, str] = {dict: "a mapping", list: "a list", bool: "true or false"}
    if value is None:
        return "missing"
    if isinstance(value, str):
        return f"the string {value[:60]!r}"
    return names.get(type(value)) or f"the value {format_value(value)}"


def require_keys(content: Mapping[str, Any], allowed: Iterable[str], place: str) -> None:
    """Check that a mapping has only allowed keys.

    Raises:
        SweepError: A key is unknown. The message names the nearest allowed one.
    """
    allowed = list(allowed)
    unknown = [
        f"unknown key {format_value(key)} in {place}{nearest(key, allowed) if isinstance(key, str) else ''}"
        for key in content
        if key not in allowed
    ]
    if unknown:
        under = f" A parameter belongs under params: `params: {{{next(k for k in content if k not in allowed)}: ...}}`."
        raise SweepError(f"{', '.join(unknown)}. Known: {', '.join(allowed)}.{under if 'params' in allowed else ''}")


def check_count(count: int, most: int) -> None:
    """Check that a sweep has at most `most` trials.

    Raises:
        SweepError: It has more. The message states how to allow more.
    """
    if count > most:
        raise SweepError(
            f"the sweep has {counted(count)} trials, at most {most:,} are allowed. Split it, or raise max_trials."
        )


def counted(number: float) -> str:
    """Format an integer for messages, however large it is."""
    return f"{number:,.0f}" if number < 10**15 else "more than 10^15"
