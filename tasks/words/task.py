"""The task `words`, all of it put together. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from depthrate.tasks.task import Params, Task, TaskContext, TrialResult
from depthrate.tasks.words.measurements import MEASUREMENTS, PANELS
from depthrate.tasks.words.schema import SCHEMA, check_trial, estimate_s, max_pack_size, measured, memory_bytes


def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack; torch is imported here and not before."""
    from depthrate.tasks.words.pack import run_pack

    yield from run_pack(trials, context)


WORDS = Task(
    name="words",
    version=1,
    schema=SCHEMA,
    run=run,
    fused=True,
    doc="Train an embedding and a linear layer on sentences made of concepts, and measure how words collapse to them.",
    measurements=MEASUREMENTS,
    panels=PANELS,
    check_trial=check_trial,
    max_pack_size=max_pack_size,
    measured=measured,
    memory_bytes=memory_bytes,
    estimate_s=estimate_s,
)
