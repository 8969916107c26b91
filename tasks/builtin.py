"""The tasks that come with depthrate: the one module that knows which there are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from depthrate.tasks.collapse.measurements import MEASUREMENTS as COLLAPSE_MEASUREMENTS
from depthrate.tasks.dufm.measurements import MEASUREMENTS as DUFM_MEASUREMENTS
from depthrate.tasks.measurement import Measurement
from depthrate.tasks.mufm.measurements import MEASUREMENTS as MUFM_MEASUREMENTS
from depthrate.tasks.next_token.measurements import MEASUREMENTS as NEXT_TOKEN_MEASUREMENTS
from depthrate.tasks.regression.measurements import MEASUREMENTS as REGRESSION_MEASUREMENTS
from depthrate.tasks.words.measurements import MEASUREMENTS as WORDS_MEASUREMENTS

if TYPE_CHECKING:
    from depthrate.tasks.task import Task


_ROOMS = {
    "collapse": "collapse",
    "dufm": "dufm",
    "mufm": "mufm",
    "next_token": "next_token",
    "regression": "regression",
    "ufm": "mufm",
    "words": "words",
}
"""Task -> the folder in whose task.py it is declared, under its name in capitals."""
BUILTIN = tuple(_ROOMS)
"""The names of the tasks that come with depthrate."""


def builtin_task(name: str) -> Task:
    """Return a task that comes with depthrate; the others are not imported."""
    declared: Task = getattr(importlib.import_module(f"depthrate.tasks.{_ROOMS[name]}.task"), name.upper())
    return declared


def builtin_tasks() -> dict[str, Task]:
    """Return the tasks that come with depthrate."""
    return {name: builtin_task(name) for name in BUILTIN}


def builtin_measurements() -> tuple[Measurement, ...]:
    """Return what they measure, without loading them; a column that several of them measure stands here once."""
    by_column: dict[str, Measurement] = {}
    for measurement in (
        *COLLAPSE_MEASUREMENTS,
        *DUFM_MEASUREMENTS,
        *MUFM_MEASUREMENTS,
        *NEXT_TOKEN_MEASUREMENTS,
        *REGRESSION_MEASUREMENTS,
        *WORDS_MEASUREMENTS,
    ):
        by_column.setdefault(measurement.name, measurement)
    return tuple(by_column.values())
