"""The tasks that come with depthrate: the one module that knows which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthrate.tasks.collapse.measurements import MEASUREMENTS as COLLAPSE_MEASUREMENTS
from depthrate.tasks.dufm.measurements import MEASUREMENTS as DUFM_MEASUREMENTS
from depthrate.tasks.measurement import Measurement
from depthrate.tasks.mufm.measurements import MEASUREMENTS as MUFM_MEASUREMENTS
from depthrate.tasks.words.measurements import MEASUREMENTS as WORDS_MEASUREMENTS

if TYPE_CHECKING:
    from depthrate.tasks.task import Task


def builtin_tasks() -> dict[str, Task]:
    """Return the tasks that come with depthrate."""
    from depthrate.tasks.collapse.task import COLLAPSE  # its data sets take numpy, which a query does without
    from depthrate.tasks.dufm.task import DUFM
    from depthrate.tasks.mufm.task import MUFM, UFM
    from depthrate.tasks.words.task import WORDS

    return {task.name: task for task in (COLLAPSE, DUFM, MUFM, UFM, WORDS)}


def builtin_measurements() -> tuple[Measurement, ...]:
    """Return what they measure, without loading them; a column that several of them measure stands here once."""
    by_column: dict[str, Measurement] = {}
    for measurement in (*COLLAPSE_MEASUREMENTS, *DUFM_MEASUREMENTS, *MUFM_MEASUREMENTS, *WORDS_MEASUREMENTS):
        by_column.setdefault(measurement.name, measurement)
    return tuple(by_column.values())
