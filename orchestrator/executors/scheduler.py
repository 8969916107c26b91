"""What keeps an executor's jobs when no launch looks after them, as `status` and `cancel` ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthrate.storage.records import Record
    from depthrate.storage.store import Store


@dataclass(frozen=True)
class JobCounts:
    """How many of a sweep's jobs a scheduler has."""

    waiting: int
    running: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Why they wait, the most frequent first."""


@dataclass(frozen=True)
class SeenJobs:
    """One answer of a scheduler about a sweep's jobs."""

    counts: JobCounts
    deaths: list[Record]
    """How those attempts ended whose job is over without a word of theirs, and which no launch has written down."""


@dataclass(frozen=True)
class CancelledJobs:
    """What became of a sweep's jobs when all were cancelled."""

    count: int
    elsewhere: list[str]
    """Clusters that have more of them and cannot be reached from here."""


@dataclass(frozen=True)
class Scheduler:
    """What keeps an executor's jobs when no launch looks after them; all functions take the store and a sweep's name."""

    title: str
    """As people write it."""
    look: Callable[[Store, str], SeenJobs | None]
    """Asks it once; None where the sweep has no jobs, or the scheduler is silent."""
    cancel_jobs: Callable[[Store, str], CancelledJobs | None]
    """Cancels all; running ones save their state first. None where the sweep has none."""
