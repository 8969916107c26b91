"""Steps at which a trial is recorded: its curve rows and its layer metrics. Importable without torch."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.training.parameters import TrainingParameters, judged_steps
from depthrate.tasks.training.polish.polish_parameters import curve_steps, marked_steps, training_steps

STEPS_PER_RECORDED = 5
"""Minimum ratio of training to recording with `record: auto`, so that recording is at most a sixth of both."""
MEASUREMENT_ROWS = 4
"""Cost of measuring all layers at a step, in curve rows (1.5 to 4 were measured). A curve row costs as much per sample as a
step: forward and backward."""


@dataclass(frozen=True)
class RecordedSteps:
    """Steps at which a trial that uses its whole budget is recorded, in increasing order."""

    measured: Sequence[int]
    """Steps at which all layers are measured, including the last."""
    curves: Sequence[int]
    """Steps with curve rows, including the measured steps."""


def recorded_steps(trial: TrainingParameters, data: DataShape) -> RecordedSteps:
    """Choose the recorded steps from counts of samples alone, so that they are equal on every machine and with every engine.

    With `record: auto` and without polish, steps are omitted until recording costs at most a sixth of the whole. The first row,
    the last row, the rows that judge convergence, the last measurement and requested measurements are never omitted.
    """
    trained = training_steps(trial, data.num_samples)
    measured = marked_steps(trial, data.num_samples)
    curves = {*measured, *curve_steps(trial.schedule, trained, trial.polish)}
    if trial.record == "all" or trial.polish:
        return RecordedSteps(measured, sorted(curves))
    trained_samples = trained * (trial.batch_size or data.num_samples)
    max_rows = trained_samples // (STEPS_PER_RECORDED * data.num_held)
    judged = {*judged_steps(trial.schedule, trained)}
    rows = {0, trained, *judged}
    is_requested = trial.measure_steps is not None or trial.measure_epochs is not None
    if is_requested:
        rows |= {*measured}
        free = max_rows - len({0, trained, *judged}) - MEASUREMENT_ROWS
    else:
        measured, free = _thinned_measurements(measured, curves - rows, judged, trained, max_rows - len(rows))
        free -= len({*measured} - rows)
        rows |= {*measured}
    return RecordedSteps(measured, sorted(rows | _spread(curves - rows, rows, free)))


def _thinned_measurements(
    measured: Sequence[int], optional_rows: Collection[int], judged: set[int], last: int, free: int
) -> tuple[list[int], int]:
    """Return the steps to measure and the number of rows that remain for the curves.

    The starts of the last quarters come first, because they show whether exponents still change. Other steps share what remains
    equally with the curves, or take what these do not need.

    Args:
        measured: Steps to choose from.
        optional_rows: Steps with curve rows that can be omitted.
        judged: Starts of the last quarters.
        last: Last step, which is always measured.
        free: Number of curve rows within the limit.
    """
    chosen = {last}
    if free >= MEASUREMENT_ROWS * len(chosen | judged):
        chosen |= judged
    free -= MEASUREMENT_ROWS * len(chosen)
    others = {*measured} - chosen
    if free >= len(optional_rows) + MEASUREMENT_ROWS * len(others):
        chosen |= others
    else:  # each measured step also has a curve row
        count = max(free // 2, free - len(optional_rows)) // (MEASUREMENT_ROWS + 1)
        others = _spread(others, chosen, count)
        chosen |= others
    return sorted(chosen), free - MEASUREMENT_ROWS * len(others)


def _spread(candidates: Collection[int], chosen: Collection[int], count: int) -> set[int]:
    """Choose up to `count` candidates, one after the other, each as far as possible from all chosen steps on a log scale."""

    if count >= len(candidates):
        return {*candidates}

    def distance(step: int, other: int) -> float:
        # rounded, so that ties do not depend on a machine's logarithm
        return round(abs(math.log1p(step) - math.log1p(other)), 9)

    nearest = {step: min(distance(step, other) for other in chosen) for step in sorted(candidates)}
    added: set[int] = set()
    while len(added) < count and nearest:
        farthest = max(nearest, key=nearest.__getitem__)
        del nearest[farthest]
        added.add(farthest)
        nearest = {step: min(gap, distance(step, farthest)) for step, gap in nearest.items()}
    return added


def taken_steps(measured: Sequence[int], last: int) -> list[int]:
    """Return which of these steps a trial that ended at step `last` measured, and the last."""
    return sorted({*(step for step in measured if step < last), last})


def requested_cost(trial: TrainingParameters, data: DataShape) -> float | None:
    """Return the cost of the measurements that a trial requests, as a multiple of its training steps. None by default."""
    if trial.polish or (trial.measure_steps is None and trial.measure_epochs is None):
        return None
    trained_samples = training_steps(trial, data.num_samples) * (trial.batch_size or data.num_samples)
    num_rows = len(marked_steps(trial, data.num_samples)) * (MEASUREMENT_ROWS + 1)
    return num_rows * data.num_held / trained_samples
