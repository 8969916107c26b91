"""Estimate the duration of packs: the task's own estimate, corrected by earlier packs on the same kind of device.

On CPUs, the measured duration is processor seconds if the task provides estimates, because wall time is meaningless on an
overloaded node. For a task without estimates, which may wait as well as compute, wall time is used.
"""

import functools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Self

import numpy as np

from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.monitor.cost import device_hours_unit, device_kind, span_s
from depthrate.storage.attempts.records import Record, records_of_attempts
from depthrate.storage.commits.snapshot import Snapshot, sample_trials
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store
from depthrate.sweeps.packing import Pack, estimated_wall_s
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import Engine, Task

MAX_TRIALS_READ = 1000
"""Maximum number of recently committed trials that are searched for measured packs."""
MAX_PACKS_READ = 64
"""Maximum number of measured packs that correct the estimates."""
FOREIGN_TRIAL_ERRORS = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
"""Exceptions that a task raises for parameters of trials that it cannot have run."""
WORKER_START_S = 2.5
"""Core seconds that a worker needs before its first pack, mostly for importing torch (measured)."""
PACK_OVERHEAD_S = 0.3
"""Core seconds per pack in addition to training, for checking kernels and committing (measured)."""
TRIAL_OVERHEAD_S = 0.2
"""Core seconds per trial in addition to training, for committing its results (measured)."""
MAX_NEIGHBOURS = 7
"""Number of measured packs, nearest in estimated seconds per trial, whose median corrects an estimate."""

MULTIPLY_ADDS_PER_S = 4.5e10
"""Multiply-adds per second of the calibration core in the matrix product below."""
MIN_SPEED = 0.25
"""Lower bound of the relative speed."""
MAX_SPEED = 2.0
"""Upper bound of the relative speed: some libraries multiply with processor units that training does not use."""


@functools.cache
def core_speed() -> float:
    """Return the speed of a local core relative to the calibration core, measured with a small matrix product."""
    a = np.ones((64, 64), np.float32)  # so small that it runs in one thread
    product, shortest_s = np.empty_like(a), math.inf
    for _ in range(30):
        started = time.perf_counter()
        for _ in range(20):
            np.matmul(a, a, out=product)
        shortest_s = min(shortest_s, time.perf_counter() - started)
    return max(MIN_SPEED, min(MAX_SPEED, 20 * a.size * len(a) / shortest_s / MULTIPLY_ADDS_PER_S))


@dataclass(frozen=True)
class Estimates:
    """Estimates the device seconds of packs."""

    task: Task
    device: str
    """Kind of device."""
    overhead_s: float = 0.0
    """Median overhead of an attempt, in addition to its packs, in seconds."""
    measured: Sequence[tuple[float, float]] = ()
    """(log of estimated seconds per trial, measured / estimated seconds including overhead) of each measured pack, sorted."""
    by_engine: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Engine -> its entries of `measured`, which correct packs of the same engine."""
    requested_engine: Engine = Engine.EAGER
    """Engine that the packs request."""
    speed: float = 1.0
    """Speed of a local core relative to the calibration core. Not applied to estimates that measured packs correct."""
    step_ratios: Sequence[tuple[float, float]] = ()
    """(estimated seconds per step, measured / estimated seconds) of shapes whose steps were measured. They replace all else."""

    def __call__(self, pack: Pack) -> float | None:
        """Return the estimated seconds on one core (on one GPU, if measured packs exist), or None if unknown."""
        if not self.measured and any(self.task.estimate_s(trial.params) is None for trial in pack.trials[:1]):
            return None
        estimated_s = estimated_wall_s(pack, self.task, self.engine(pack) or Engine.EAGER)
        overhead_s, factor = _overhead_s(self.task, len(pack.trials)), self._factor(pack)
        by_packs = self.measured and not self.step_ratios
        return (overhead_s + estimated_s) * factor if by_packs else overhead_s + estimated_s * factor

    def steps_per_s(self, pack: Pack) -> float | None:
        """Return the estimated trial-steps per second on one core (or GPU, as in `__call__`), or None if unknown."""
        step_s = self._step_s(pack)
        return None if step_s is None else 1 / (step_s * self._factor(pack))

    def with_measured_steps(self, measured: Sequence[tuple[Pack, float]]) -> Self:
        """Return estimates based on the measured trial-steps per second of some packs."""
        ratios = [(step_s, 1 / rate / step_s) for pack, rate in measured if (step_s := self._step_s(pack)) is not None]
        return replace(self, step_ratios=ratios)

    def _step_s(self, pack: Pack) -> float | None:
        engine = self.engine(pack)
        return None if engine is None else self.task.step_s(pack.trials[0].params, engine)

    def engine(self, pack: Pack) -> Engine | None:
        """Return the engine that would train a pack, or None if the task has only one engine."""
        return self.task.engine(pack.trials[0].params, self.requested_engine, self.device) if pack.trials else None

    def allocated_s(self, pack: Pack) -> float | None:
        """Return the estimated seconds that a pack occupies its slot, including the attempt's overhead."""
        estimated_s = self(pack)
        return None if estimated_s is None else estimated_s + self.overhead_s

    @property
    def unit(self) -> str:
        """Unit of the seconds: core or GPU."""
        return device_hours_unit(self.device if self.measured else "cpu").removesuffix("-hours")

    @property
    def remark(self) -> str:
        """Basis of the estimate. Empty if it is the task's own estimate."""
        if self.step_ratios or not self.measured:
            return "based on the measured steps" if self.step_ratios else ""
        packs = "the last measured pack" if len(self.measured) == 1 else f"the last {len(self.measured)} measured packs"
        return f"based on {packs} of task {self.task.name}"

    def hours(self, packs: Sequence[Pack], workers: int) -> float | None:
        """Return the device hours of these packs and of the start of `workers` workers, or None without estimates."""
        seconds = [self(pack) for pack in packs]
        start_s = WORKER_START_S * min(workers, len(packs)) if self.task.fused else 0.0
        return None if None in seconds else (start_s + sum(s for s in seconds if s is not None)) / 3600

    def _factor(self, pack: Pack) -> float:
        """Return the ratio of real seconds to those that the task estimates for the calibration core."""
        if self.step_ratios and (step_s := self._step_s(pack)) is not None:
            return min(self.step_ratios, key=lambda measured: abs(math.log(measured[0] / step_s)))[1]
        engine = self.engine(pack) or Engine.EAGER
        measured = self.by_engine.get(engine) or self.measured
        trial_s = estimated_wall_s(pack, self.task, engine) / max(1, len(pack.trials))
        if not measured or not trial_s > 0:
            return 1.0 if measured else 1 / self.speed
        logs = np.array([log_s for log_s, _ in measured])
        nearest = np.argsort(np.abs(logs - np.log(trial_s)), kind="stable")[:MAX_NEIGHBOURS]
        return statistics.median(measured[index][1] for index in nearest)


def make_estimates(plan: Plan, store: Store, device: str, requested_engine: Engine = Engine.EAGER) -> Estimates:
    """Return estimates for this kind of device, corrected by measured packs of the plan's task."""
    task = plan.checked.task
    by_engine, overheads_s = _measured(task, device, plan.snapshot, store) if plan.packs else ({}, [])
    measured = sorted(pair for pairs in by_engine.values() for pair in pairs)
    overhead_s = statistics.median(overheads_s) if overheads_s else 0.0
    speed = core_speed() if plan.packs and task.fused and not measured else 1.0
    return Estimates(task, device, overhead_s, measured, by_engine, requested_engine, speed)


def _measured(
    task: Task, device: str, snapshot: Snapshot, store: Store
) -> tuple[dict[str, list[tuple[float, float]]], list[float]]:
    """Return `Estimates.by_engine` and the overhead in seconds of each attempt."""
    sample = sample_trials(store, snapshot, MAX_TRIALS_READ)
    columns = ["task", "attempt_id", "pack_id", "wall_s", "device", "params"]
    packs: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in sample.select(columns).to_pylist():
        if row["task"] == task.name and row["wall_s"] is not None and device_kind(row["device"]) == device_kind(device):
            packs[row["attempt_id"], row["pack_id"]].append(row)
    packs = dict(islice(packs.items(), MAX_PACKS_READ))
    first = next(iter(packs.values()), [])
    counts_cores = device_kind(device) == "cpu" and any(_estimate_s(task, row) is not None for row in first[:1])
    records = records_of_attempts(store, snapshot, {attempt for attempt, _ in packs})
    by_engine: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (attempt_id, _), rows in packs.items():
        record = records.get(attempt_id)
        share = _computing_share(record) if counts_cores else 1.0
        with suppress(*FOREIGN_TRIAL_ERRORS):  # this task cannot have run these trials
            engine = Engine((record and record.get("engine")) or Engine.EAGER)
            estimated_s = _estimate_pack_s(task, rows, engine)
            measured_s = sum(row["wall_s"] for row in rows) * (share or 0.0)
            if measured_s > 0 and estimated_s > 0:
                ratio = measured_s / (_overhead_s(task, len(rows)) + estimated_s)
                by_engine[engine].append((float(np.log(estimated_s / len(rows))), ratio))
    ended = [record for record in records.values() if record["ended_at"] is not None and record["packs_s"]]
    return by_engine, [max(0.0, span_s(record, record["ended_at"]) - record["packs_s"]) for record in ended]


def _overhead_s(task: Task, num_trials: int) -> float:
    return PACK_OVERHEAD_S + TRIAL_OVERHEAD_S * num_trials if task.fused else 0.0


def _estimate_s(task: Task, row: Mapping[str, Any]) -> float | None:
    with suppress(*FOREIGN_TRIAL_ERRORS):
        return task.estimate_s(task.schema.completed(parse_object(row["params"])))
    return None


def _estimate_pack_s(task: Task, rows: Sequence[Mapping[str, Any]], engine: Engine) -> float:
    trials = [Trial("", task.name, task.version, task.schema.completed(parse_object(row["params"]))) for row in rows]
    return estimated_wall_s(Pack("", tuple(trials)), task, engine)


def _computing_share(record: Record | None) -> float | None:
    """Return an attempt's CPU seconds per second of run time, or None if its record lacks them."""
    if record is None or record["cpu_s"] is None or record["ended_at"] is None:
        return None
    run_s = span_s(record, record["ended_at"])
    return record["cpu_s"] / run_s if run_s > 0 else None
