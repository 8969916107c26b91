"""The training loop of a pack, for every task: resume, train, measure, prune, checkpoint, and yield the results.

A task supplies a `Training`: the trainer, the number of steps per trial, and the metrics. Shapes: T trials.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.interface import Engine, Interrupted, ResultStatus, TaskContext, TrialResult
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.training.checkpoint import load_previous, serialise
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.engines.native import smoothed_library
from depthrate.tasks.training.layers import null_if_not_finite
from depthrate.tasks.training.measuring_thread import MeasuringThread
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.polish.polisher import Polisher
from depthrate.tasks.training.polish.smoothed_objective import NativeObjective
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import Trainer, Training

log = logging.getLogger(__name__)


def run_training(training: Training, context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack of trials of one shape. Results are yielded after the whole pack has finished.

    Raises:
        Interrupted: A stop was requested, and a checkpoint has been saved.
    """
    with computing(context.device, training.matmul_precision):
        pack = prepare_pack(training, context)
        try:
            pack.train()
        finally:
            pack.close()
        yield from pack.results()


def prepare_pack(training: Training, context: TaskContext) -> TrainingPack:
    """Create the pack, or resume it from an earlier attempt's checkpoint with the engine with which it started.

    Raises:
        EngineError: Native steps are requested or resumed, but not available on this machine.
        Interrupted: A stop was requested while kernels were built.
    """
    pack = TrainingPack(training, context)
    resumed = pack.resume()
    engine = resumed or training.engine(context.engine, context.device)
    if resumed is not None and context.engine not in (resumed, Engine.AUTO):
        log.warning(
            "the pack's checkpoint was trained with engine %s and resumes with it, not %s", resumed, context.engine
        )
    context.report_engine(engine)
    if pack.needs_library(engine):
        try:
            context.report_engine(engine, pack.use_native())
        except EngineError as error:
            is_resumed_here = resumed is not None and context.device == "cpu"
            if is_resumed_here or context.engine is not Engine.AUTO or not training.may_lack_kernels(context.device):
                raise
            if resumed is not None:  # on a GPU, after native steps on a CPU or on another GPU
                pack.restart()
            log.warning("training %s eagerly, because %s", "runs" if resumed is None else "restarts", error)
            engine = Engine.EAGER
            context.report_engine(engine)
    pack.engine = engine
    return pack


class TrainingPack:
    """A pack in training: the trainer, the remaining trials, and the metrics so far."""

    def __init__(self, training: Training, context: TaskContext):
        self.training, self.context = training, context
        self.test_split = training.test_split(context.device)
        self.num_steps = max(training.num_steps)
        self._ends = set(training.num_steps)
        self.curve_steps: set[int] = set().union(*training.curve_steps)
        self._stops = sorted(self.curve_steps | self._ends)
        self._thread: MeasuringThread | None = None
        self.restart()

    def restart(self) -> None:
        """Start with all trials before their first step, with eager steps."""
        num_trials = len(self.training.num_steps)
        self.trainer = self.training.begin(self.context.device)
        self.polisher: Polisher | None = None
        self._polish_library: Library | None = None
        """Kernels of native polish."""
        self.engine = Engine.EAGER
        self.alive = list(range(num_trials))
        """Index in the pack of each trial in the trainer, by position."""
        self._divergence = Divergence(num_trials, self.trainer.device)
        self.diverged_at: dict[int, int] = {}
        self.pruned_at: dict[int, int] = {}
        self.finished_at: dict[int, int] = {}
        """Last steps of trials that finished before other trials of the pack."""
        self.metrics: list[list[dict[str, Any]]] = [[] for _ in range(num_trials)]
        self.curves: list[list[dict[str, Any]]] = [[] for _ in range(num_trials)]
        self.features: list[list[dict[str, Any]]] = [[] for _ in range(num_trials)]

    @property
    def _on_gpu(self) -> bool:
        return self.trainer.device.type == "cuda"

    @property
    def is_trained(self) -> bool:
        """Whether all steps of training are done."""
        return self.polisher is not None or self.trainer.step_count == self.num_steps

    def use_native(self) -> float:
        """Switch to native steps and polish. Return the seconds spent building kernels.

        Raises:
            EngineError: The kernels are not available on this machine.
            Interrupted: A stop was requested meanwhile.
        """
        compile_s, trainer, polish = 0.0, self.trainer, self.training.polish
        build = self.context.should_stop, self.context.libraries
        if not self.is_trained:
            compile_s = self.training.use_native(trainer, *build, self.context.device)
        if self._can_polish_natively:
            assert polish is not None and isinstance(trainer, FusedTrainer)
            self._polish_library, polish_s = smoothed_library(trainer.network, polish, *build)
            compile_s += polish_s
        return compile_s

    def needs_library(self, engine: Engine) -> bool:
        """Return whether the remaining steps or the polish run in kernels with this engine."""
        return engine is Engine.NATIVE and (not self.is_trained or self._can_polish_natively)

    @property
    def _can_polish_natively(self) -> bool:
        """Whether polish runs in kernels with native steps. Otherwise it runs eagerly."""
        if self.training.polish is None:
            return False
        return isinstance(self.trainer, FusedTrainer) and self.trainer.kernels.can_smooth

    def train(self) -> None:
        """Train to the end, then polish if requested, measuring along the way."""
        self.context.show_curves(dict(zip(self.context.trial_ids, self.curves, strict=True)))
        if self.polisher is None:
            self._take_steps()
        self._finish_measurement()
        if self.training.polish is not None and self.alive:
            self._polish()
        if self.training.at_end is not None and self.alive:
            for index, columns in zip(self.alive, self.training.at_end(self.trainer), strict=True):
                is_end = (row for row in reversed(self.metrics[index]) if row["is_last"] and row["split"] == "train")
                next(is_end).update(columns)

    def _take_steps(self) -> None:
        trainer = self.trainer
        while True:
            step = trainer.step_count
            if step in self.curve_steps:
                self._record(step)
            if step in self._ends and step < self.num_steps:
                ends = {index: step for index in self.alive if self.training.num_steps[index] == step}
                self._drop(self.finished_at, ends)
            if step == self.num_steps or not self.alive:
                return
            was_checked = trainer.advance(self._stops[bisect.bisect_right(self._stops, step)], self._divergence)
            # reading the result would wait for a GPU, where diverged trials may stay until the next record
            if was_checked and not self._on_gpu:
                self._drop_diverged()
            self._report_progress(trainer.step_count)

    def _polish(self) -> None:
        polisher = self.polisher or self._start_polish()
        if self._polish_library is not None:
            assert isinstance(self.trainer, FusedTrainer)
            polisher.objective = NativeObjective(self._polish_library, self.trainer, polisher.plan)
        while positions := polisher.active:
            polisher.step()
            step, done = self.num_steps + polisher.num_evaluations, set(positions) - set(polisher.active)
            if step in self.curve_steps or done:
                self._record_polished(step, positions if step in self.curve_steps else sorted(done), done)
            self._report_progress(step)
        assert isinstance(self.trainer, FusedTrainer)
        self.trainer.theta_TP = polisher.theta_TP

    def _start_polish(self) -> Polisher:
        assert self.training.polish is not None and isinstance(self.trainer, FusedTrainer)
        self.trainer = self.trainer.to_float64()
        self.polisher = Polisher(self.training.polish, self.trainer)
        return self.polisher

    def _report_progress(self, step: int) -> None:
        polish = self.training.polish
        self.context.progress(step, self.num_steps + (0 if polish is None else polish.num_evaluations))
        stops = self.context.should_stop()
        if stops or self.context.checkpoint_due():
            self._drop_diverged()
            self.context.save_checkpoint(self.dump_checkpoint())
        if stops:
            raise Interrupted

    def results(self) -> Iterator[TrialResult]:
        """Yield each trial's tables, with features if requested."""
        peak_memory_gb = torch.cuda.max_memory_reserved() / 1e9 if self._on_gpu else None
        for index in range(len(self.metrics)):
            if index in self.pruned_at:
                yield TrialResult(index, {}, status=ResultStatus.PRUNED, num_steps=self.pruned_at[index])
                continue
            yield TrialResult(
                index,
                self._tables(index),
                status=ResultStatus.DIVERGED if index in self.diverged_at else ResultStatus.OK,
                num_steps=self._steps_taken(index),
                peak_memory_gb=peak_memory_gb,
            )

    def _steps_taken(self, index: int) -> int:
        if index in self.diverged_at or self.polisher is None:
            return self.diverged_at.get(index, self.training.num_steps[index])
        return self.num_steps + (self.polisher.finished_at[self.alive.index(index)] or 0)

    def _tables(self, index: int) -> dict[str, Any]:
        metrics = [
            {name: value.numpy() if isinstance(value, Tensor) else value for name, value in row.items()}
            for row in self.metrics[index]
        ]
        tables: dict[str, Any] = {"metrics": metrics, "curves": self.curves[index]}
        features: Mapping[str, Any] | None = None
        if self.features[index]:
            columns = {
                name: [np.asarray(table[name]) for table in self.features[index]] for name in self.features[index][0]
            }
            features = {name: np.concatenate(parts) for name, parts in columns.items()}
        elif index in self.alive:
            position, last = self.alive.index(index), self._steps_taken(index)
            features = self.training.final_features(self.trainer, position, index, last)
        return tables if features is None else {**tables, "features": features}

    def resume(self) -> Engine | None:
        """Resume from an earlier attempt's checkpoint if it holds all these trials. Return its engine, or None otherwise."""
        previous = load_previous(self.context)
        if previous is None or previous[0]["engine"] not in set(Engine):  # of a former version
            return None
        saved, positions = previous
        self.metrics = [saved["metrics"][position] for position in positions]
        self.curves = [saved["curves"][position] for position in positions]
        self.features = [saved["features"][position] for position in positions]
        for name in ("diverged_at", "pruned_at", "finished_at"):
            setattr(
                self,
                name,
                {p: saved[name][previous] for p, previous in enumerate(positions) if previous in saved[name]},
            )
        ended = self.diverged_at.keys() | self.pruned_at.keys() | self.finished_at.keys()
        alive = [index for index in range(len(positions)) if index not in ended]
        self._select([self.alive.index(index) for index in alive])
        rows = [saved["alive"].index(positions[index]) for index in alive]
        if saved["polisher"] is not None:
            self._start_polish().load_state(saved["polisher"], rows)
        self.trainer.load_state(saved["trainer"], rows)
        return Engine(saved["engine"])

    def close(self) -> None:
        """End the thread of measurements."""
        if self._thread is not None:
            self._thread.close()

    def _finish_measurement(self) -> None:
        if self._thread is not None:
            self._thread.finish()

    def dump_checkpoint(self) -> bytes:
        """Serialise the state that `resume` reads, with a leading checksum."""
        self._finish_measurement()
        names = ("alive", "diverged_at", "pruned_at", "finished_at", "metrics", "curves", "features")
        polisher = None if self.polisher is None else self.polisher.state()
        state = {name: getattr(self, name) for name in names} | {"trainer": self.trainer.state(), "polisher": polisher}
        return serialise({"engine": self.engine.value, "trial_ids": list(self.context.trial_ids), **state})

    def _select(self, positions: list[int]) -> None:
        if len(positions) < len(self.alive):
            self.trainer.select(positions)
            self._divergence.select(positions)
            self.alive = [self.alive[position] for position in positions]

    def _drop(self, ended_at: dict[int, int], ends: Mapping[int, int]) -> None:
        """Drop trials, and add their last steps to `ended_at`."""
        ended_at |= ends
        self._select([position for position, index in enumerate(self.alive) if index not in ends])

    def _drop_diverged(self) -> None:
        steps = self._divergence.diverged_steps()
        self._drop(self.diverged_at, {self.alive[position]: step for position, step in steps.items()})

    def _record(self, step: int) -> None:
        """Append the curve rows and the metrics that are due at this step."""
        self._finish_measurement()
        self._drop_diverged()
        if not self.alive:
            return
        due = [position for position, index in enumerate(self.alive) if step in self.training.curve_steps[index]]
        evaluation = self.training.evaluate(self.trainer, due)
        rows_of_due = _rows(evaluation)
        is_finite = [math.isfinite(row["loss"]) for row in rows_of_due]
        indices = [self.alive[position] for position, is_kept in zip(due, is_finite, strict=True) if is_kept]
        rows = [row for row, is_kept in zip(rows_of_due, is_finite, strict=True) if is_kept]
        if len(rows) < len(due):
            loss_T = torch.zeros(len(self.alive), dtype=evaluation["loss"].dtype, device=evaluation["loss"].device)
            loss_T[due] = evaluation["loss"]
            self._divergence.check(loss_T, step)
            self._drop_diverged()
        rates = self.trainer.lr_at(step) if self.num_steps else [math.nan] * len(self.alive)
        positions = [self.alive.index(index) for index in indices]
        reported = {}
        for index, position, row in zip(indices, positions, rows, strict=True):
            columns = self.training.extra_curves(index, row, self.curves[index])
            values = null_if_not_finite({**row, **columns, "lr": rates[position]})
            self.curves[index].append({"step": step, "split": "train", **values})
            if 0 < step < self.training.num_steps[index]:
                reported[index] = values
        self._measure(step, positions)
        if reported:
            self._drop(self.pruned_at, dict.fromkeys(self.context.report(step, reported), step))

    def _record_polished(self, step: int, positions: Sequence[int], done: Collection[int]) -> None:
        """Append these trials' curve rows, with the true ReLU, and the metrics due at this step or at a trial's end."""
        assert self.polisher is not None
        rows = _rows(self.polisher.compare(positions))
        for position in positions:
            index, row = self.alive[position], rows[position]
            row |= self.training.extra_curves(index, row, self.curves[index])
            row["smoothed_grad_norm"] = self.polisher.gradient_norms[position]
            row |= self.polisher.final_columns(position) if position in done else {}
            self.curves[index].append({"step": step, "split": "train", **null_if_not_finite(row)})
        self._measure(step, positions, done)

    def _measure(self, step: int, positions: Sequence[int], done: Collection[int] = ()) -> None:
        """Append these trials' layer metrics if due at this step or at the trial's end, and the test split.

        On a GPU whose kernels take the steps this happens in another thread, which the next record waits for.
        """
        if not positions:  # all have diverged, and a network need not accept an empty pack
            return
        trainer, trials = self.trainer, {position: self.alive[position] for position in positions}
        measured = [p for p in positions if step in self.training.measured_steps[trials[p]] or p in done]
        if not measured and self.test_split is None:
            return
        if self._on_gpu and self.engine is Engine.NATIVE and self.polisher is None:
            assert isinstance(trainer, FusedTrainer)
            self._thread = self._thread or MeasuringThread()
            self._thread.start(partial(self._append_metrics, trainer.snapshot(), step, trials, measured))
        else:
            self._append_metrics(trainer, step, trials, measured)

    def _append_metrics(self, trainer: Trainer, step: int, trials: Mapping[int, int], measured: Sequence[int]) -> None:
        """Append metrics of trials, given as position in the trainer -> index in the pack."""
        training = self.training
        rows_of_measured = training.measure(trainer, measured, step) if measured else []
        for position, rows in zip(measured, rows_of_measured, strict=True):
            index = trials[position]
            self.metrics[index] += rows
            features = training.intermediate_features(trainer, position, index, step)
            if features is not None:
                self.features[index].append(features)
        if self.test_split is not None:
            tables = {position: (self.metrics[index], self.curves[index]) for position, index in trials.items()}
            self.test_split(trainer, step, tables, measured)


def _rows(columns: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Convert an evaluation to one row per trial, reading all columns at once: each reading waits for a GPU."""
    values_TC = torch.stack([column.to(columns["loss"].device) for column in columns.values()], dim=1).tolist()
    return [dict(zip(columns, values, strict=True)) for values in values_TC]
