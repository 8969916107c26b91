"""What is said of a sweep that cannot be read or run."""

from __future__ import annotations


class SweepError(ValueError):
    """A sweep is not understood or cannot run; the message names the place in the sweep file."""


class NoSweepFileError(SweepError):
    """There is no sweep file, and no shipped sweep, of that name."""
