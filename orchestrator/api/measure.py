"""Measure the training steps of a planned sweep's shapes on this machine, for `depthrate plan --measure`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from depthrate.orchestrator.api.planning import PlannedSweep
from depthrate.orchestrator.attempts.options import OptionError
from depthrate.orchestrator.executors.base import usable_engine
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.sweeps.packing import Pack, one_of_each_shape
from depthrate.tasks.interface import MeasuredSpeed

MAX_SHAPES = 3
"""Maximum number of measured shapes."""
SIDE_S = 1.5
"""CPU seconds of steps per shape with the engine, and as many with the plain loop."""
MAX_START_S = 18.0
"""Seconds after which no further shape is started, so that all of them take half a minute with kernels that build for 5 s."""


@dataclass(frozen=True)
class MeasuredShapes:
    """Measured shapes of a sweep, smallest first."""

    packs: Sequence[Pack]
    """One pack per measured shape."""
    speeds: Sequence[MeasuredSpeed]
    num_shapes: int
    """Number of shapes of the pending trials."""


def measure_shapes(planned: PlannedSweep) -> MeasuredShapes:
    """Measure one pack of each shape, or of the smallest, the middle and the largest shape. Nothing is written to the store.

    Raises:
        OptionError: The packs do not run on a CPU of this machine.
        TaskError: The task's steps cannot be measured.
        EngineError: The requested engine is not available.
    """
    plan, target = planned.plan, planned.target
    if target.device != "cpu" or not target.is_local:
        raise OptionError(
            f"--measure takes steps on a CPU core of this machine, but the sweep would run elsewhere ({target.summary()}). Add "
            "--executor local --device cpu, or run one pack there: depthrate run SWEEP --pilot"
        )
    estimates, task = planned.estimates, plan.checked.task
    shapes = sorted(one_of_each_shape(plan.packs, task), key=lambda pack: -(estimates.steps_per_s(pack) or 0.0))
    chosen = shapes if len(shapes) <= MAX_SHAPES else [shapes[0], shapes[len(shapes) // 2], shapes[-1]]
    requested, _ = usable_engine(target, plan.checked.sweep.engine)
    started, data = time.monotonic(), open_data_folder()
    measured: list[tuple[Pack, MeasuredSpeed]] = []
    for pack in chosen:
        if not measured or time.monotonic() < started + MAX_START_S:
            speed = task.measure_speed([trial.params for trial in pack.trials], requested, data, SIDE_S)
            measured.append((pack, speed))
    return MeasuredShapes([pack for pack, _ in measured], [speed for _, speed in measured], len(shapes))
