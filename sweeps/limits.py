"""How much a sweep file may ask for before anything is expanded: a slip of the pen should not fill the memory."""

from __future__ import annotations

from depthrate.sweeps.errors import SweepError

MAX_TRIALS = 1_000_000
"""Trials of a sweep, values of an axis, proposals of a search; a sweep file's `max_trials` allows more."""
MAX_DIGITS = 300
"""Of a whole number in a sweep file; no parameter takes one of more (`tasks.schema.LARGEST`)."""
MAX_REPEATED = 100_000
"""Values that the aliases of a sweep file may stand for."""


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
