"""The life of a pack of the task `words`: resume, train, measure on the way, prune, checkpoint, and give the results.

As of packs of deep networks, but that each trial has its own sentences, and so its own number of steps in an epoch.

Shapes: T trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from depthrate.tasks.task import Interrupted, Params, ResultStatus, TaskContext, TrialResult
from depthrate.tasks.training.checkpoint import at_positions, left_by_earlier, packed
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.divergence import CHECK_STEPS
from depthrate.tasks.training.parameters import measured_steps
from depthrate.tasks.words.measure import curve_rows, joined, kept_projection, layer_rows, prediction_of
from depthrate.tasks.words.schema import embedding_decay, steps_of
from depthrate.tasks.words.sentences import draw_sentences
from depthrate.tasks.words.trainer import Hyperparameters, Shape, WordsTrainer

CURVES_PER_DECADE = 16


def run_pack(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack of trials of one shape; results come when the whole pack is done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    with computing(context.device):
        pack = _Pack(trials, context)
        pack.resume()
        pack.train()
        yield from pack.results()


def make_trainer(trials: Sequence[Params], device: str) -> WordsTrainer:
    """Return the trainer of a pack of trials of one shape, before its first step."""
    shared = trials[0]
    shape = Shape(
        vocabulary_size=shared["vocabulary_size"],
        width=shared["width"],
        sentence_length=shared["sentence_length"],
        sequences=shared["sequences"],
        batch_size=shared["batch_size"],
        layer_norm_eps=shared["layer_norm_eps"] if shared["layer_norm"] else None,
        schedule=shared["schedule"],
        dtype=getattr(torch, shared["dtype"]),
    )
    hyperparameters = [
        Hyperparameters(
            seed=params["seed"],
            lr=params["lr"],
            decay_embedding=embedding_decay(params),
            decay_linear=params["weight_decay"],
            init_scale=params["init_scale"],
            num_steps=steps_of(params),
        )
        for params in trials
    ]
    return WordsTrainer(shape, hyperparameters, [draw_sentences(params) for params in trials], device)


class _Pack:
    """A pack on its way: the trainer, which trials are left, and what was measured."""

    def __init__(self, trials: Sequence[Params], context: TaskContext):
        self.trials, self.context = trials, context
        self.trainer = make_trainer(trials, context.device)
        self.predictions = [prediction_of(params) for params in trials]
        self.num_steps = [steps_of(params) for params in trials]
        self.measured = [set(measured_steps(p, last)) for p, last in zip(trials, self.num_steps, strict=True)]
        self.curve_steps = [steps | curve_steps(max(steps)) for steps in self.measured]
        self.alive = list(range(len(trials)))
        self.ended: dict[int, tuple[str, int]] = {}
        self.metrics: list[list[dict[str, Any]]] = [[] for _ in trials]
        self.curves: list[list[dict[str, Any]]] = [[] for _ in trials]
        self.features: list[list[dict[str, Any]]] = [[] for _ in trials]

    def train(self) -> None:
        """Train to the end, measuring on the way; a trial whose steps are over leaves before the others."""
        trainer, context, most = self.trainer, self.context, max(self.num_steps)
        context.show_curves(dict(zip(context.trial_ids, self.curves, strict=True)))
        while True:
            step = trainer.step_count
            self._record(step)
            self._end(ResultStatus.OK, step, [index for index in self.alive if self.num_steps[index] == step])
            if not self.alive:
                return
            finite_T = trainer.step()
            if trainer.step_count % CHECK_STEPS == 0:
                self._end(ResultStatus.DIVERGED, step, _where(self.alive, finite_T.tolist()))
            context.progress(trainer.step_count, most)
            is_over = context.should_stop()
            if is_over or context.checkpoint_due():
                context.save_checkpoint(self._saved())
            if is_over:
                raise Interrupted

    def results(self) -> Iterator[TrialResult]:
        """Yield each trial's tables."""
        on_gpu = self.trainer.device.type == "cuda"
        peak_memory_gb = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None
        for index in range(len(self.trials)):
            status, step = self.ended[index]
            tables: dict[str, Any] = {}
            if status != ResultStatus.PRUNED:
                tables = {"metrics": self.metrics[index], "curves": self.curves[index]}
                if self.features[index]:
                    tables["features"] = joined(self.features[index])
            yield TrialResult(index, tables, status=ResultStatus(status), num_steps=step, peak_memory_gb=peak_memory_gb)

    def resume(self) -> None:
        """Go on from the checkpoint of an earlier attempt, if there is one that holds all these trials."""
        left = left_by_earlier(self.context)
        if left is None:
            return
        saved, positions = left
        for name in ("metrics", "curves", "features"):
            setattr(self, name, [_arrays(saved[name][position]) for position in positions])
        self.ended = {index: tuple(ended) for index, ended in at_positions(saved["ended"], positions).items()}
        alive = [index for index in range(len(positions)) if index not in self.ended]
        self._keep(alive)
        self.trainer.load_state(saved["trainer"], [saved["alive"].index(positions[index]) for index in alive])

    def _saved(self) -> bytes:
        return packed(
            {
                "trial_ids": list(self.context.trial_ids),
                "trainer": self.trainer.state(),
                "alive": self.alive,
                "ended": {index: (str(status), step) for index, (status, step) in self.ended.items()},
                "metrics": [_tensors(rows) for rows in self.metrics],
                "curves": [_tensors(rows) for rows in self.curves],
                "features": [_tensors(tables) for tables in self.features],
            }
        )

    def _keep(self, alive: list[int]) -> None:
        if len(alive) < len(self.alive):
            self.trainer.keep([self.alive.index(index) for index in alive])
            self.alive = alive

    def _end(self, status: ResultStatus, step: int, indices: Sequence[int]) -> None:
        """Let trials leave the pack, each with how it came out and the steps it took."""
        self.ended |= {index: (status, step) for index in indices}
        self._keep([index for index in self.alive if index not in indices])

    def _record(self, step: int) -> None:
        """Append the curves of the trials that want them at this step, and the layers' measurements where it is measured."""
        reported, diverged = {}, []
        for position, index in enumerate(self.alive):
            if step not in self.curve_steps[index]:
                continue
            evaluation = self.trainer.evaluate(position)
            if not math.isfinite(evaluation.loss):
                diverged.append(index)
                continue
            best = max([evaluation.test_accuracy, *(row["best_test_accuracy"] for row in self.curves[index][-2:-1])])
            prediction = self.predictions[index]
            rows = curve_rows(evaluation, best, self.trainer.lr_at(position, step), prediction)
            reported[index] = {name: value for name, value in rows[0].items() if name != "split"}
            self.curves[index] += [{"step": step, **row} for row in rows]
            if step in self.measured[index]:
                self._measure(position, index, step)
        self._end(ResultStatus.DIVERGED, step, diverged)
        going_on = {index: values for index, values in reported.items() if 0 < step < self.num_steps[index]}
        if going_on:
            self._end(ResultStatus.PRUNED, step, sorted(self.context.report(step, going_on)))

    def _measure(self, position: int, index: int, step: int) -> None:
        params = self.trials[index]
        rows = layer_rows(self.trainer, position, params["concepts"], self.predictions[index])
        self.metrics[index] += [{"step": step, "split": "train", **row} for row in rows]
        if params["features"] == "projections" or (
            params["features"] == "projection" and step == self.num_steps[index]
        ):
            self.features[index].append(kept_projection(self.trainer, position, params["concepts"], step))


def curve_steps(last: int) -> set[int]:
    """Return some sixteen steps a decade, 0 and the last among them: dense enough to find the peak of a test accuracy."""
    exponents = range(int(CURVES_PER_DECADE * math.log10(last)) + 1) if last > 1 else range(1)
    return {0, last, *(round(10 ** (exponent / CURVES_PER_DECADE)) for exponent in exponents)}


def _where(indices: Sequence[int], good: Sequence[bool]) -> list[int]:
    return [index for index, each in zip(indices, good, strict=True) if not each]


def _tensors(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with arrays as tensors, which a checkpoint may hold; arrays of texts as lists."""
    return [{name: _stored(value) for name, value in row.items()} for row in rows]


def _stored(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return value.tolist() if value.dtype.kind == "U" else torch.from_numpy(value)


def _arrays(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what `_tensors` was given."""
    return [{name: _restored(value) for name, value in row.items()} for row in rows]


def _restored(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return np.array(value) if isinstance(value, list) else value
