"""Memory that packs need, as their task predicts it, beside what a worker may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from depthrate.sweeps.packing import Pack, chains, largest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.schema import Parameter
from depthrate.tasks.task import Task

TOLERANCE = 1.25
"""Predictions are good to a quarter: a trial that needs more than it may use by less than that is tried."""


class MemoryLimitError(ValueError):
    """A trial needs more memory than a worker has, even alone."""


def predicted_bytes(pack: Pack, task: Task, device: str) -> float | None:
    """Return the predicted peak memory of a pack; null where the task predicts none."""
    if task.memory_bytes is None or not pack.trials:
        return None
    group = chains(pack.trials, task)
    together = len(group) if task.fused else 1
    return max(task.memory_bytes(trial.params, together, device) for trial in _asked(pack, task))


def _asked(pack: Pack, task: Task) -> Sequence[Trial]:
    """Return the trials whose predictions stand for the pack's: one of a fused pack's one shape, its largest."""
    return [largest(chains(pack.trials, task), task)] if task.fused and pack.trials else pack.trials


def check_memory(packs: Sequence[Pack], task: Task, device: str, memory_bytes: float | None) -> None:
    """Refuse trials that do not fit into the `memory_bytes` of a worker even alone.

    Raises:
        MemoryLimitError: saying what was predicted, what there is, and which parameters would make it fit.
    """
    if task.memory_bytes is None or memory_bytes is None:
        return
    needs: dict[str, tuple[float, Trial]] = {}
    for pack in packs:
        for trial in _asked(pack, task):
            needed = task.memory_bytes(trial.params, 1, device)
            if needed > TOLERANCE * memory_bytes:
                needs[trial.trial_id] = needed, trial
    if not needs:
        return
    needed, trial = max(needs.values(), key=lambda each: each[0])
    others = f" (the largest of {len(needs)} such packs)" if len(needs) > 1 else ""
    ways = []
    for parameter in task.schema.values():
        most = _largest_that_fits(trial, parameter, task.memory_bytes, device, memory_bytes)
        if most is not None:
            given = trial.params[parameter.name]
            ways.append(f"{parameter.name} at most {most} (it is {'null' if given is None else given})")
    alone = f"{', or '.join(ways)}; or " if ways else ""
    raise MemoryLimitError(
        f"trial {trial.trial_id} needs about {gigabytes(needed)} of memory on {device}{others}, but a worker may use "
        f"{gigabytes(memory_bytes)}; give {alone}each worker more memory (here by fewer --workers, on SLURM by mem_gb or "
        "gpu_mem_gb in the cluster file)"
    )


def gigabytes(number: float) -> str:
    """Return a number of bytes in GB, for people."""
    return f"{number / 1e9:.3g} GB"


def _largest_that_fits(
    trial: Trial, parameter: Parameter, predict: Callable[..., float], device: str, memory_bytes: float
) -> int | None:
    """Return the largest value of a whole-number parameter with which the trial fits; null if it alone cannot do it."""
    if parameter.kind != "int" or parameter.fusible:
        return None

    def fits(value: int) -> bool:
        return predict({**trial.params, parameter.name: value}, 1, device) <= memory_bytes

    low, given = int(parameter.minimum or 1), trial.params[parameter.name]
    if given == low or not fits(low):
        return None
    high = 2 * low if given is None else int(given)
    while given is None and high < 2**40 and fits(high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
