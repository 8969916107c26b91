"""Packs: trials of one shape that run together in one process."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from depthrate.sweeps.trial import CanonicalWriter, Trial
from depthrate.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Pack:
    """Trials that run together; the unit of scheduling."""

    pack_id: str
    trials: tuple[Trial, ...]

    @property
    def trial_ids(self) -> list[str]:
        """Identity of each trial, in order."""
        return [trial.trial_id for trial in self.trials]


def make_pack(trials: Sequence[Trial]) -> Pack:
    """Return a pack of these trials, named by what is in it."""
    digest = hashlib.sha256("\n".join(trial.trial_id for trial in trials).encode()).hexdigest()
    return Pack(digest[:16], tuple(trials))


def pack_trials(
    trials: Iterable[Trial],
    task: Task,
    *,
    device: str = "cpu",
    workers: int = 1,
    memory_bytes: float | None = None,
) -> list[Pack]:
    """Group trials into packs, longest first.

    A fused task's packs hold one shape each, cut evenly at the size the task advises, no larger than leaves every
    worker one, and no larger than fits into the `memory_bytes` that a worker has (but at least one trial: see
    `sweeps.memory.check_memory`). A task that runs its trials in turn gets packs small enough that every worker has several.
    """
    trials = list(trials)
    if not trials:
        return []
    packs = []
    for group in _by_shape(trials, task) if task.fused else [trials]:
        # every worker should have a pack; one whose trials run in turn can be cut smaller at no cost
        share = math.ceil(len(trials) / (workers if task.fused else 4 * workers))
        most = min(task.max_pack_size(group[0].params, device), share)
        if task.fused and memory_bytes is not None:
            most = _most_that_fit(group[0], task, device, most, memory_bytes)
        packs += [make_pack(part) for part in _cut_evenly(group, most)]
    return sorted(packs, key=lambda pack: -estimated_wall_s(pack, task))


def _most_that_fit(trial: Trial, task: Task, device: str, most: int, memory_bytes: float) -> int:
    """Return the largest number of trials of this shape, up to `most`, whose predicted peak fits; at least 1."""
    if task.memory_bytes is None:
        return most
    while most > 1 and task.memory_bytes(trial.params, most, device) > memory_bytes:
        most -= 1
    return most


def estimated_wall_s(pack: Pack, task: Task) -> float:
    """Return the rough seconds of a pack on one core; its number of trials where the task gives no estimate."""
    if task.estimate_s is None:
        return float(len(pack.trials))
    asked = pack.trials[:1] if task.fused else pack.trials  # one shape, one estimate
    total = sum(task.estimate_s(trial.params) for trial in asked)
    return total * len(pack.trials) if task.fused else total


def _by_shape(trials: list[Trial], task: Task) -> list[list[Trial]]:
    """Group the trials by what those of a pack must share: every parameter that is not fusible."""
    shape = CanonicalWriter(task.schema.keys() - task.schema.fusible)
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(shape.write(trial.params), []).append(trial)
    return list(groups.values())


def _cut_evenly(trials: list[Trial], most: int) -> list[list[Trial]]:
    count = math.ceil(len(trials) / most)
    bounds = [round(part * len(trials) / count) for part in range(count + 1)]
    return [trials[low:high] for low, high in itertools.pairwise(bounds)]
