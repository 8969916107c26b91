"""The tasks that come with depthrate: the one module that knows which there are."""

from __future__ import annotations

from depthrate.tasks.collapse.task import COLLAPSE
from depthrate.tasks.task import Task


def builtin_tasks() -> dict[str, Task]:
    """Return the tasks that come with depthrate."""
    return {COLLAPSE.name: COLLAPSE}
