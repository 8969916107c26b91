"""Group trials into packs (trials of one shape in one process), and check their predicted memory."""

import bisect
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from depthrate.grouping import grouped
from depthrate.sweeps.errors import MemoryLimitError
from depthrate.sweeps.trial import CanonicalWriter, Trial
from depthrate.tasks.interface import Engine, Task
from depthrate.tasks.parameters import Parameter

MAX_TRIALS_IN_UNKNOWN_MEMORY = 128
"""Maximum number of trials per pack if a worker's memory is unknown."""
MEMORY_TOLERANCE = 1.25
"""Tolerated ratio of predicted to available memory. Predictions are accurate to 25 %."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Trials that run together: the unit of scheduling."""

    pack_id: str
    trials: tuple[Trial, ...]

    @property
    def trial_ids(self) -> list[str]:
        return [trial.trial_id for trial in self.trials]


def make_pack(trials: Sequence[Trial]) -> Pack:
    """Make a pack. Its id is a hash of the trial ids."""
    digest = hashlib.sha256("\n".join(trial.trial_id for trial in trials).encode()).hexdigest()
    return Pack(digest[:16], tuple(trials))


def pack_trials(
    trials: Iterable[Trial], task: Task, *, device: str = "cpu", workers: int = 1, memory_bytes: float | None = None
) -> list[Pack]:
    """Group trials into packs, longest first.

    Packs of a fused task hold trials of one shape and have equal sizes, or multiples of the trials that a GPU trains at the
    same time. A pack has at most the size that the task advises, and is small enough that every worker gets one and that it
    fits into `memory_bytes` (but has at least one trial, see `check_memory`). Packs of a task that runs trials in turn are
    small enough that every worker gets several.
    """
    trials = list(trials)
    if not trials:
        return []
    packs = []
    groups = _by_shape(trials, task) if task.fused else [[[trial] for trial in trials]]
    num_chains = sum(map(len, groups))
    for group in groups:
        # every worker should get a pack, and packs whose trials run in turn can be smaller at no cost
        share = math.ceil(num_chains / (workers if task.fused else 4 * workers))
        deepest = largest(group, task)
        most = min(task.max_pack_size(deepest.params, device), share)
        if task.fused:
            most = _most_that_fit(most, task, deepest, device, memory_bytes)
        unit = task.pack_unit(deepest.params, device) if task.fused else 1
        unit = unit if unit <= most else 1
        count = 1 if len(group) <= most else math.ceil(len(group) / (most - most % unit))
        units = math.ceil(len(group) / unit)
        bounds = [min(len(group), unit * round(part * units / count)) for part in range(count + 1)]
        parts = [group[low:high] for low, high in itertools.pairwise(bounds)]
        packs += [make_pack([trial for chain in part for trial in chain]) for part in parts]
    return sorted(packs, key=lambda pack: -estimated_wall_s(pack, task))


def _most_that_fit(most: int, task: Task, trial: Trial, device: str, memory_bytes: float | None) -> int:
    """Return the number of trials, at most `most` and at least one, whose predicted memory fits."""
    if memory_bytes is None:
        return min(most, MAX_TRIALS_IN_UNKNOWN_MEMORY)

    def predict(num_trials: int) -> float:
        return task.memory_bytes(trial.params, num_trials, device) or 0

    if predict(most) <= memory_bytes:
        return most
    return max(1, bisect.bisect_right(range(1, most), memory_bytes, key=predict))


def why_alone(packs: Sequence[Pack], task: Task, *, device: str, workers: int) -> str | None:
    """Explain why packs of a fused task hold a single trial. Return None if no pack does, or if trials always train alone."""
    alone = [pack for pack in packs if len(pack.trials) == 1]
    if not task.fused or len(packs) < 2 or not alone or task.max_pack_size(alone[0].trials[0].params, device) == 1:
        return None
    trials = [trial for pack in packs for trial in pack.trials]
    subject = "all packs have" if len(alone) == len(packs) else f"{len(alone)} of {len(packs)} packs have"
    if len(_by_shape(trials, task)) == len(packs):
        shared = sorted(task.schema.keys() - task.schema.fusible)
        differing = [name for name in shared if len({str(trial.params.get(name)) for trial in trials}) > 1]
        return f"{subject} one trial: trials of a pack share {', '.join(differing)}"
    if len(packs) <= workers:
        return f"{subject} one trial, so that each of {workers} workers has a pack. Fewer workers make larger packs."
    return f"{subject} one trial: the remainder of a shape, or the limit of a worker's memory"


def one_of_each_shape(packs: Iterable[Pack], task: Task) -> list[Pack]:
    """Return the longest pack of each shape, or one pack if the task runs trials in turn."""
    writer = CanonicalWriter(task.schema.keys() - task.schema.fusible if task.fused else [])
    first: dict[str, Pack] = {}
    for pack in packs:
        first.setdefault(writer.write(pack.trials[0].params), pack)
    return list(first.values())


def chains(trials: Sequence[Trial], task: Task) -> list[list[Trial]]:
    """Split the trials of a pack into chains, in order. If the task has no chains, every trial is a separate chain."""
    along = task.chain_parameter(trials[0].params) if task.fused and trials else None
    if along is None:
        return [[trial] for trial in trials]
    others = CanonicalWriter(task.schema.keys() - {along})
    ordered = sorted(trials, key=lambda trial: trial.params[along])
    return list(grouped(ordered, lambda trial: others.write(trial.params)).values())


def largest(group: Sequence[list[Trial]], task: Task) -> Trial:
    """Return a trial that is furthest along its chain. The others have the same shape."""
    along = task.chain_parameter(group[0][0].params)
    return group[0][0] if along is None else max((chain[-1] for chain in group), key=lambda trial: trial.params[along])


def estimated_wall_s(pack: Pack, task: Task, engine: Engine = Engine.EAGER) -> float:
    """Estimate the seconds of a pack on one core. If the task gives no estimate, return the pack's number of trials."""
    if not pack.trials:  # a peer launch has committed all of its trials
        return 0.0
    if not task.fused:
        estimates = [task.estimate_s(trial.params, engine) for trial in pack.trials]
        return sum(1.0 if seconds is None else seconds for seconds in estimates)
    group = chains(pack.trials, task)
    seconds = task.estimate_s(largest(group, task).params, engine)  # trials of one shape have the same estimate
    return float(len(pack.trials)) if seconds is None else seconds * len(group)


def _by_shape(trials: list[Trial], task: Task) -> list[list[list[Trial]]]:
    """Group the trials by their non-fusible parameters, and split each group into chains."""
    shared = task.schema.keys() - task.schema.fusible
    writers: dict[str | None, CanonicalWriter] = {}
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        along = task.chain_parameter(trial.params)
        if along not in writers:
            writers[along] = CanonicalWriter(shared - {along})
        groups.setdefault(writers[along].write(trial.params), []).append(trial)
    return [chains(group, task) for group in groups.values()]


def predicted_bytes(pack: Pack, task: Task, device: str) -> float | None:
    """Predict the peak memory of a pack in bytes. Return None if the task makes no prediction."""
    together = len(chains(pack.trials, task)) if task.fused else 1
    predictions = [task.memory_bytes(trial.params, together, device) for trial in _deciding_trials(pack, task)]
    return max((number for number in predictions if number is not None), default=None)


def _deciding_trials(pack: Pack, task: Task) -> Sequence[Trial]:
    """Return the trials that determine a pack's prediction: the largest one if the task is fused, and otherwise all."""
    return [largest(chains(pack.trials, task), task)] if task.fused and pack.trials else pack.trials


def check_memory(packs: Sequence[Pack], task: Task, device: str, memory_bytes: float | None) -> None:
    """Refuse trials that exceed a worker's `memory_bytes` even if they run alone.

    Raises:
        MemoryLimitError: The message has the prediction, the limit, and parameter values that fit.
    """
    if memory_bytes is None:
        return
    needs: dict[str, tuple[float, Trial]] = {}
    for pack in packs:
        for trial in _deciding_trials(pack, task):
            needed = task.memory_bytes(trial.params, 1, device)
            if needed is not None and needed > MEMORY_TOLERANCE * memory_bytes:
                needs[trial.trial_id] = needed, trial
    if not needs:
        return
    needed, trial = max(needs.values(), key=lambda need: need[0])
    others = f" (the largest of {len(needs)} such packs)" if len(needs) > 1 else ""
    ways = []
    for parameter in task.schema.values():
        most = _largest_that_fits(trial, parameter, task.memory_bytes, device, memory_bytes)
        if most is not None:
            value = trial.params[parameter.name]
            ways.append(f"{parameter.name} at most {most} (now {'null' if value is None else value})")
    alone = f"{', or '.join(ways)}, or " if ways else ""
    raise MemoryLimitError(
        f"trial {trial.trial_id} needs about {gigabytes(needed)} of memory on {device}{others}, but a worker may use "
        f"{gigabytes(memory_bytes)}. Set {alone}give each worker more memory (locally by fewer --workers, on SLURM by mem_gb "
        "or gpu_mem_gb in the cluster file)."
    )


def gigabytes(number: float) -> str:
    """Format bytes as GB."""
    return f"{number / 1e9:.3g} GB"


def _largest_that_fits(
    trial: Trial, parameter: Parameter, predict: Callable[..., float | None], device: str, memory_bytes: float
) -> int | None:
    """Return the largest value of an int parameter with which the trial fits, or None."""
    if parameter.kind != "int" or parameter.fusible:
        return None

    def fits(value: int) -> bool:
        return (predict({**trial.params, parameter.name: value}, 1, device) or 0) <= memory_bytes

    low, current = int(parameter.minimum or 1), trial.params[parameter.name]
    if current == low or not fits(low):
        return None
    high = 2 * low if current is None else int(current)
    while current is None and high < 2**40 and fits(high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
