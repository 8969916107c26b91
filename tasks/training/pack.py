"""The life of a pack, whatever its task: resume, train, measure on the way, prune, checkpoint, and give the results.

A task hands in a `Training`: its network, its data, its hyper-parameters, and functions that measure. Shapes: T trials.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.task import Engine, Interrupted, ResultStatus, TaskContext, TrialResult
from depthrate.tasks.training.checkpoint import at_positions, left_by_earlier, packed
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.divergence import Divergence
from depthrate.tasks.training.engine import EngineError, chosen_engine
from depthrate.tasks.training.held_out import HeldOut
from depthrate.tasks.training.layers import defined, kept_features
from depthrate.tasks.training.native_steps import native_library
from depthrate.tasks.training.polish import Polisher
from depthrate.tasks.training.polish_parameters import curve_steps
from depthrate.tasks.training.step_cache import compiled_step
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import Training

log = logging.getLogger(__name__)
CURVES = ("loss", "objective", "accuracy", "grad_norm")


def run_training(training: Training, context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack of trials of one shape; results come when the whole pack is done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    with computing(context.device, training.plan.matmul_precision):
        pack = ready_pack(training, context)
        pack.train()
        yield from pack.results()


def ready_pack(training: Training, context: TaskContext) -> TrainingPack:
    """Return the pack as far as an earlier attempt brought it, with the engine that it began with.

    Raises:
        EngineError: its steps are to be native, or compiled because that was asked for, and cannot be here.
        Interrupted: asked to stop while its step was compiled.
    """
    pack = TrainingPack(training, context)
    begun = pack.resume()
    engine = begun or _chosen_engine(pack)
    if begun is not None and context.engine not in (begun, Engine.AUTO):
        log.warning("the pack's checkpoint was trained %s; it goes on like that, not %s", begun, context.engine)
    context.runs_as(engine)
    if engine == Engine.EAGER or pack.is_trained:  # polish has no compiled steps
        pack.engine = engine
        return pack
    try:
        compile_s = pack.use(engine)
    except EngineError as error:
        if Engine.NATIVE in (engine, context.engine) or context.engine is Engine.COMPILED:
            raise
        log.warning("training %s, because %s", "anew and eagerly" if begun else "eagerly", error)
        context.runs_as(Engine.EAGER)
        return pack if begun is None else TrainingPack(training, context)
    context.runs_as(engine, compile_s)
    return pack


def _chosen_engine(pack: TrainingPack) -> Engine:
    context = pack.context
    if pack.trainer.can_compile:
        return chosen_engine(context.engine, pack.shape(), context.device)
    if context.engine is Engine.NATIVE:
        raise EngineError(
            f"there are no native steps for {type(pack.trainer.network).__name__}, whose step is written by hand; train with "
            "--engine auto"
        )
    return Engine.EAGER


class TrainingPack:
    """A pack on its way through training: the trainer, which trials are left, and what was measured."""

    def __init__(self, training: Training, context: TaskContext):
        self.training, self.context = training, context
        dataset, plan = training.dataset, training.plan
        self.trainer = training.begin(context.device)
        self.polisher: Polisher | None = None
        self.held_out = None
        if training.measure_test is not None and dataset.test is not None:
            self.held_out = HeldOut(dataset.test, training.measure_test, context.device, plan.dtype)
        self.engine = Engine.EAGER
        self.num_steps = plan.num_steps
        self.measured_steps = {*training.measured_steps, self.num_steps}
        budget = 0 if training.polish is None else training.polish.num_evaluations
        self.curve_steps = self.measured_steps | set(curve_steps(plan.schedule, self.num_steps, budget))
        num_trials = len(training.hyperparameters)
        self.alive = list(range(num_trials))
        self._divergence = Divergence(num_trials, self.trainer.device)
        self.diverged_at: dict[int, int] = {}
        self.pruned_at: dict[int, int] = {}
        self.metrics: list[list[dict[str, Any]]] = [[] for _ in range(num_trials)]
        self.curves: list[list[dict[str, Any]]] = [[] for _ in range(num_trials)]

    @property
    def _on_gpu(self) -> bool:
        return self.trainer.device.type == "cuda"

    @property
    def is_trained(self) -> bool:
        """Whether no step of training is left."""
        return self.polisher is not None or self.trainer.step_count == self.num_steps

    def shape(self) -> PackShape:
        """Return what the time of its steps depends on."""
        own = self.training
        return PackShape.of_plan(own.plan, own.network, own.dataset.shape, len(self.measured_steps))

    def use(self, engine: Engine) -> float:
        """Train natively or compiled from here on, and return the seconds it took to build or compile what that takes.

        Raises:
            EngineError: that cannot be done here.
            Interrupted: asked to stop on the way.
        """
        if engine is Engine.NATIVE:
            library, compile_s = native_library(self.trainer.network, self.trainer.plan, self.context.should_stop)
            self.trainer.use_native(library)
        else:
            step, compile_s = compiled_step(self.trainer.program(), self.context.should_stop)
            self.trainer.use(step)
        self.engine = engine
        return compile_s

    def train(self) -> None:
        """Train to the end, and polish where that is asked for, measuring on the way."""
        self.context.show_curves(dict(zip(self.context.trial_ids, self.curves, strict=True)))
        if self.polisher is None:
            self._descend(self.trainer)
        if self.training.polish is not None and self.alive:
            self._polish()

    def _descend(self, trainer: FusedTrainer) -> None:
        while True:
            step = trainer.step_count
            if step in self.curve_steps:
                self._record(step)
            if step == self.num_steps or not self.alive:
                return
            looked = trainer.advance(min(each for each in self.curve_steps if each > step), self._divergence)
            if (
                looked and not self._on_gpu
            ):  # which would wait for it here; what diverged there disturbs nobody meanwhile
                self._drop_diverged()
            self._tell_progress(trainer.step_count)

    def _polish(self) -> None:
        polisher = self.polisher or self._begin_polish()
        while positions := polisher.active:
            polisher.step()
            step, done = self.num_steps + polisher.num_evaluations, set(positions) - set(polisher.active)
            if step in self.curve_steps or done:
                self._record_polished(step, positions if step in self.curve_steps else sorted(done), done)
            self._tell_progress(step)
        self.trainer.theta_TP = polisher.theta_TP

    def _begin_polish(self) -> Polisher:
        assert self.training.polish is not None
        self.trainer = self.trainer.in_float64()
        self.polisher = Polisher(self.training.polish, self.trainer)
        return self.polisher

    def _tell_progress(self, step: int) -> None:
        polish = self.training.polish
        self.context.progress(step, self.num_steps + (0 if polish is None else polish.num_evaluations))
        is_over = self.context.should_stop()
        if is_over or self.context.checkpoint_due():
            self._drop_diverged()
            self.context.save_checkpoint(self.saved())
        if is_over:
            raise Interrupted

    def results(self) -> Iterator[TrialResult]:
        """Yield each trial's tables, features included where asked for."""
        peak_memory_gb = torch.cuda.max_memory_allocated() / 1e9 if self._on_gpu else None
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
            return self.diverged_at.get(index, self.num_steps)
        return self.num_steps + (self.polisher.finished_at[self.alive.index(index)] or 0)

    def _tables(self, index: int) -> dict[str, Any]:
        metrics = [
            {name: value.numpy() if isinstance(value, Tensor) else value for name, value in row.items()}
            for row in self.metrics[index]
        ]
        tables: dict[str, Any] = {"metrics": metrics, "curves": self.curves[index]}
        kept, dtype = ("none", "") if self.training.kept is None else self.training.kept[index]
        if kept != "none" and index in self.alive:
            counts_K = self.training.dataset.class_counts_K
            position, last = self.alive.index(index), self._steps_taken(index)
            tables["features"] = kept_features(self.trainer, position, counts_K, last, kept, dtype)
        return tables

    def resume(self) -> Engine | None:
        """Go on from the checkpoint of an earlier attempt, if there is one that holds all these trials; return its engine."""
        left = left_by_earlier(self.context)
        if left is None:
            return None
        saved, positions = left
        self.metrics = [saved["metrics"][position] for position in positions]
        self.curves = [saved["curves"][position] for position in positions]
        self.diverged_at = at_positions(saved["diverged_at"], positions)
        self.pruned_at = at_positions(saved.get("pruned_at", {}), positions)
        gone = self.diverged_at.keys() | self.pruned_at.keys()
        alive = [index for index in range(len(positions)) if index not in gone]
        self._keep([self.alive.index(index) for index in alive])
        rows = [saved["alive"].index(positions[index]) for index in alive]
        polished = saved.get("polisher")  # checkpoints of older versions have none
        if polished is not None:
            self._begin_polish().load_state(polished, rows)
        self.trainer.load_state(saved["trainer"], rows)
        return Engine(saved.get("engine", Engine.EAGER))  # checkpoints of older versions do not say

    def saved(self) -> bytes:
        """Return all that `resume` needs, with a checksum in front."""
        return packed(
            {
                "engine": self.engine.value,
                "trial_ids": list(self.context.trial_ids),
                "trainer": self.trainer.state(),
                "polisher": None if self.polisher is None else self.polisher.state(),
                "alive": self.alive,
                "diverged_at": self.diverged_at,
                "pruned_at": self.pruned_at,
                "metrics": self.metrics,
                "curves": self.curves,
            }
        )

    def _keep(self, positions: list[int]) -> None:
        if len(positions) < len(self.alive):
            self.trainer.keep(positions)
            self._divergence.keep(positions)
            self.alive = [self.alive[position] for position in positions]

    def _drop_pruned(self, step: int, reported: dict[int, dict[str, float | None]]) -> None:
        """Tell how the trials do, and leave out those that their search has seen enough of."""
        left_out = self.context.report(step, reported)
        self.pruned_at |= {index: step for index in left_out}
        self._keep([position for position, index in enumerate(self.alive) if index not in left_out])

    def _drop_diverged(self) -> None:
        found = self._divergence.found()
        self.diverged_at |= {self.alive[position]: step for position, step in found.items()}
        self._keep([position for position in range(len(self.alive)) if position not in found])

    def _record(self, step: int) -> None:
        """Append the curves at this step, and every layer's measurements if it is one of the measured steps."""
        self._drop_diverged()
        evaluation = self.trainer.evaluate()
        finite = torch.isfinite(evaluation.loss)
        self._divergence.look(evaluation.loss, step)
        self._drop_diverged()
        columns = {name: getattr(evaluation, name)[finite].tolist() for name in CURVES}
        rates = self.trainer.lr_at(step) if self.num_steps else [math.nan] * len(self.alive)
        reported = {}
        for position, index in enumerate(self.alive):
            row = {name: values[position] for name, values in columns.items()}
            reported[index] = defined({**row, **self.training.own_curves(index, row), "lr": rates[position]})
            self.curves[index].append({"step": step, "split": "train", **reported[index]})
        self._measure(step, range(len(self.alive)))
        if 0 < step < self.num_steps:
            self._drop_pruned(step, reported)

    def _record_polished(self, step: int, positions: Sequence[int], done: Collection[int]) -> None:
        """Append the curves of these trials, with the true ReLU, and the measurements where they are due or a trial is done."""
        assert self.polisher is not None
        evaluation = self.polisher.compare(positions)
        for position in positions:
            index = self.alive[position]
            row: dict[str, Any] = {name: getattr(evaluation, name)[position].item() for name in CURVES}
            row |= self.training.own_curves(index, row)
            row["smoothed_grad_norm"] = self.polisher.gradient_norms[position]
            self.curves[index].append({"step": step, "split": "train", **defined(row)})
        self._measure(step, positions, done)

    def _measure(self, step: int, positions: Sequence[int], done: Collection[int] = ()) -> None:
        """Append the layers of these trials if the step is a measured one, else of those that are done, and the test split."""
        measured = positions if step in self.measured_steps else sorted(done)
        for position, rows in zip(measured, self.training.measure(self.trainer, measured, step), strict=True):
            self.metrics[self.alive[position]] += rows
        if self.held_out is not None:
            tables = {p: (self.metrics[self.alive[p]], self.curves[self.alive[p]]) for p in positions}
            self.held_out.record(self.trainer, step, tables, measured)
