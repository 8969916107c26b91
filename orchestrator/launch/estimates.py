"""How long packs take: what their task reckons, corrected by what packs of it have taken before on the same kind of device.

What a pack took on CPUs are processor seconds, where its task reckons such: where too much runs at once a pack's wall
time says nothing of it. A task that reckons nothing may wait as well as compute, so of its packs the wall time counts.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from depthrate.orchestrator.launch.core_speed import core_speed
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.monitor.cost import device_kind, device_word, span_s
from depthrate.storage.attempts.records import Record, records_of_attempts
from depthrate.storage.commits.snapshot import Snapshot, sample_trials
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store
from depthrate.sweeps.packing import Pack, estimated_wall_s
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import Engine, Task

MAX_TRIALS_READ = 1000
"""Committed last, among which measured packs are looked for."""
MAX_PACKS_READ = 64
NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
"""What a task raises on the parameters of trials that it cannot have run."""
START_S = 2.5
"""Of one core, that a worker takes until its first pack: it imports torch (measured)."""
PACK_S, TRIAL_S = 0.3, 0.2
"""Of one core, that a pack and each of its trials take beside training: kernels are looked at, results committed (measured)."""
NEAREST = 7
"""Measured packs whose median corrects a pack's estimate: those whose trials were reckoned to take about as long."""


@dataclass(frozen=True)
class Estimates:
    """Gives a pack's rough seconds of a device."""

    task: Task
    device: str
    """Its kind."""
    overhead_s: float = 0.0
    """What an attempt takes beside its pack: the median of those that were measured."""
    measured: Sequence[tuple[float, float]] = ()
    """(log of the seconds reckoned for a trial, seconds taken over reckoned with what is beside) of each measured pack, by the
    former."""
    by_engine: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Engine -> those of `measured` whose steps it ran, which correct packs whose steps it will run, if there are any."""
    asked: Engine = Engine.EAGER
    """The engine that packs ask for."""
    speed: float = 1.0
    """Of a core here, over the one for which tasks reckon; packs that were measured on this device know it already."""

    def __call__(self, pack: Pack) -> float | None:
        """Return the rough seconds on one core (or GPU, where measured ones correct it); None where nothing is known."""
        if not self.measured and any(self.task.estimate_s(trial.params) is None for trial in pack.trials[:1]):
            return None
        engine = self._engine(pack)
        reckoned_s = estimated_wall_s(pack, self.task, engine)
        beside_s = _overhead_s(self.task, len(pack.trials))
        if not self.measured:
            return beside_s + reckoned_s / self.speed
        return (beside_s + reckoned_s) * self._factor(reckoned_s / max(1, len(pack.trials)), engine)

    def _engine(self, pack: Pack) -> Engine:
        chosen = self.task.engine(pack.trials[0].params, self.asked, self.device) if pack.trials else None
        return chosen or Engine.EAGER

    def held_s(self, pack: Pack) -> float | None:
        """Return for how many rough seconds a pack holds its place, which is what is paid for."""
        rough_s = self(pack)
        return None if rough_s is None else rough_s + self.overhead_s

    @property
    def unit(self) -> str:
        """What the seconds are of: core or GPU."""
        return device_word(self.device if self.measured else "cpu").removesuffix("-hours")

    @property
    def remark(self) -> str:
        """Says what the estimate rests on; empty where it is the task's own reckoning."""
        if not self.measured:
            return ""
        packs = "the last measured pack" if len(self.measured) == 1 else f"the last {len(self.measured)} measured packs"
        return f"corrected by what {packs} of task {self.task.name} took"

    def hours(self, packs: Sequence[Pack], workers: int) -> float | None:
        """Return the hours of these packs and of so many workers' beginning; None without any estimate."""
        seconds = [self(pack) for pack in packs]
        start_s = START_S * min(workers, len(packs)) if self.task.fused else 0.0
        return None if None in seconds else (start_s + sum(s for s in seconds if s is not None)) / 3600

    def _factor(self, reckoned_s: float, engine: Engine) -> float:
        measured = self.by_engine.get(engine) or self.measured
        if not measured or not reckoned_s > 0:
            return 1.0
        logs = np.array([log_s for log_s, _ in measured])
        nearest = np.argsort(np.abs(logs - np.log(reckoned_s)), kind="stable")[:NEAREST]
        return statistics.median(measured[index][1] for index in nearest)


def make_estimates(plan: Plan, store: Store, device: str, asked: Engine = Engine.EAGER) -> Estimates:
    """Return what gives a pack's rough seconds on such a device, from measured packs of its task where there are any.

    asked: the engine that packs ask for there.
    """
    task = plan.checked.task
    by_engine, overheads_s = _measured(task, device, plan.snapshot, store) if plan.packs else ({}, [])
    measured = sorted(pair for pairs in by_engine.values() for pair in pairs)
    overhead_s = statistics.median(overheads_s) if overheads_s else 0.0
    speed = core_speed() if plan.packs and task.fused and not measured else 1.0
    return Estimates(task, device, overhead_s, measured, by_engine, asked, speed)


def _measured(
    task: Task, device: str, snapshot: Snapshot, store: Store
) -> tuple[dict[str, list[tuple[float, float]]], list[float]]:
    """Return `Estimates.by_engine`, and what attempts took beside their packs."""
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
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (attempt_id, _), rows in packs.items():
        record = records.get(attempt_id)
        share = _computing_share(record) if counts_cores else 1.0
        with suppress(*NOT_OURS):  # trials that this task cannot have run
            engine = Engine((record and record.get("engine")) or Engine.EAGER)
            reckoned_s, taken_s = _reckoned_s(task, rows, engine), sum(row["wall_s"] for row in rows) * (share or 0.0)
            if taken_s > 0 and reckoned_s > 0:
                over_reckoned = taken_s / (_overhead_s(task, len(rows)) + reckoned_s)
                found[engine].append((float(np.log(reckoned_s / len(rows))), over_reckoned))
    ended = [record for record in records.values() if record["ended_at"] is not None and record["packs_s"]]
    return found, [max(0.0, span_s(record, record["ended_at"]) - record["packs_s"]) for record in ended]


def _overhead_s(task: Task, num_trials: int) -> float:
    return PACK_S + TRIAL_S * num_trials if task.fused else 0.0


def _estimate_s(task: Task, row: Mapping[str, Any]) -> float | None:
    with suppress(*NOT_OURS):
        return task.estimate_s(task.schema.completed(parse_object(row["params"])))
    return None


def _reckoned_s(task: Task, rows: Sequence[Mapping[str, Any]], engine: Engine) -> float:
    trials = [Trial("", task.name, task.version, task.schema.completed(parse_object(row["params"]))) for row in rows]
    return estimated_wall_s(Pack("", tuple(trials)), task, engine)


def _computing_share(record: Record | None) -> float | None:
    """Return the cores that an attempt computed with on average while it ran; None where its record does not say."""
    if record is None or record["cpu_s"] is None or record["ended_at"] is None:
        return None
    held_s = span_s(record, record["ended_at"])
    return record["cpu_s"] / held_s if held_s > 0 else None
