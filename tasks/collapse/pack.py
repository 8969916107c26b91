"""The task `collapse`: train a pack of networks fused, measure every layer at log-spaced steps.

Shapes: T trials, N samples sorted by class, I input dimensions, D feature dimensions, K classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.collapse.schema import (
    context_length,
    has_last_bias,
    is_transformer,
    learning_rate,
    log_spaced_steps,
    measured_steps,
    num_positions,
    num_steps,
    objective_limit,
    patch_size,
    vocabulary_size,
    weight_decay_last,
)
from depthrate.tasks.collapse.tables import LayerTables, defined
from depthrate.tasks.data.datasets import DATASETS, Dataset, cut_into_patches, load_dataset
from depthrate.tasks.networks.residual import Network, ResidualNetwork
from depthrate.tasks.networks.transformer import Transformer
from depthrate.tasks.task import Interrupted, Params, TaskContext, TrialResult
from depthrate.tasks.training.trainer import FusedTrainer, Hyperparameters, TrainingPlan

CHECKPOINT_FORMAT = 2
DIVERGENCE_CHECK_STEPS = 10
"""Steps between two looks for losses that are not finite; fixed, so that a trial's record does not depend on its pack."""


def run_pack(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack of trials of one shape; results come when the whole pack is done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    torch.set_num_threads(1)  # bitwise results need one thread, and packs run one a core anyway
    if context.device == "cuda" and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with _denormals_flushed():
        pack = _CollapsePack(trials, context)
        pack.resume()
        pack.train()
        yield from pack.results()


@contextlib.contextmanager
def _denormals_flushed() -> Iterator[None]:
    """Take numbers too small for a normal float for zero: they make matrix products up to 180 times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)  # the processor's mode is the whole thread's, and others rely on it


class _CollapsePack:
    """A pack on its way through training: the trainer, which trials are left, and what was measured."""

    def __init__(self, trials: Sequence[Params], context: TaskContext):
        self.trials, self.context = trials, context
        shared = trials[0]
        if context.device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("device is cuda, but torch sees no GPU; run with --device cpu")
        self.dataset = _load(shared, context)
        dtype = getattr(torch, shared["dtype"])
        self.x_NI = torch.from_numpy(self.dataset.x_ND).to(context.device)
        self.num_steps = num_steps(shared, len(self.x_NI))
        self.measured_steps = set(measured_steps(shared, self.num_steps))
        self.curve_steps = self.measured_steps | set(_curve_steps(self.num_steps))
        self.trainer = FusedTrainer(
            _network(shared, self.dataset),
            _training_plan(shared, dtype, self.num_steps),
            [_hyperparameters(params) for params in trials],
            self.x_NI,
            torch.from_numpy(self.dataset.labels_N).to(context.device),
        )
        self.layers = LayerTables(self.trainer, self.dataset.class_counts_K)
        self.alive = list(range(len(trials)))
        self.diverged_at: dict[int, int] = {}
        self.pruned_at: dict[int, int] = {}
        self.metrics: list[list[dict[str, Any]]] = [[] for _ in trials]
        self.curves: list[list[dict[str, Any]]] = [[] for _ in trials]

    def train(self) -> None:
        """Train to the end, measuring on the way."""
        trainer, context = self.trainer, self.context
        while True:
            step = trainer.step_count
            if step in self.curve_steps:
                self._record(step)
            if step == self.num_steps or not self.alive:
                return
            loss_T = trainer.step()
            if trainer.step_count % DIVERGENCE_CHECK_STEPS == 0:
                self._drop_diverged(loss_T, step)
            context.progress(trainer.step_count, self.num_steps)
            if context.should_stop():
                self._save()
                raise Interrupted
            if context.checkpoint_due():
                self._save()

    def results(self) -> Iterator[TrialResult]:
        """Yield each trial's tables, features included where asked for."""
        peak_memory_gb = torch.cuda.max_memory_allocated() / 1e9 if self.x_NI.is_cuda else None
        for index, params in enumerate(self.trials):
            if index in self.pruned_at:
                yield TrialResult(index, {}, status="pruned", num_steps=self.pruned_at[index])
                continue
            metrics = [{**row, "class_gram": row["class_gram"].numpy()} for row in self.metrics[index]]
            tables: dict[str, Any] = {"metrics": metrics, "curves": self.curves[index]}
            if params["features"] != "none" and index in self.alive:
                tables["features"] = self.layers.features(
                    self.alive.index(index), self.num_steps, params["features"], params["feature_dtype"]
                )
            diverged = index in self.diverged_at
            yield TrialResult(
                index,
                tables,
                status="diverged" if diverged else "ok",
                num_steps=self.diverged_at.get(index, self.num_steps),
                peak_memory_gb=peak_memory_gb,
            )

    def resume(self) -> None:
        """Go on from the checkpoint of an earlier attempt, if there is one that holds all these trials."""
        content = self.context.load_checkpoint()
        if content is None:
            return
        try:
            saved = _unpack(content)
        except Exception as error:  # damaged in any way: training anew costs time, never results
            logging.getLogger(__name__).warning("checkpoint cannot be read (%s); training starts anew", error)
            return
        order = {trial_id: position for position, trial_id in enumerate(saved["trial_ids"])}
        if not all(trial_id in order for trial_id in self.context.trial_ids):
            return
        positions = [order[trial_id] for trial_id in self.context.trial_ids]
        self.metrics = [saved["metrics"][position] for position in positions]
        self.curves = [saved["curves"][position] for position in positions]
        self.diverged_at = {
            index: saved["diverged_at"][position]
            for index, position in enumerate(positions)
            if position in saved["diverged_at"]
        }
        pruned_at = saved.get("pruned_at", {})
        self.pruned_at = {
            index: pruned_at[position] for index, position in enumerate(positions) if position in pruned_at
        }
        gone = self.diverged_at.keys() | self.pruned_at.keys()
        alive = [index for index in range(len(positions)) if index not in gone]
        self._keep([self.alive.index(index) for index in alive])
        rows = torch.tensor([saved["alive"].index(positions[index]) for index in alive], dtype=torch.int64)
        self.trainer.load_state(_rows_of_state(saved["trainer"], rows))

    def _save(self) -> None:
        buffer = io.BytesIO()
        torch.save(
            {
                "format": CHECKPOINT_FORMAT,
                "trial_ids": list(self.context.trial_ids),
                "trainer": self.trainer.state(),
                "alive": self.alive,
                "diverged_at": self.diverged_at,
                "pruned_at": self.pruned_at,
                "metrics": self.metrics,
                "curves": self.curves,
            },
            buffer,
        )
        payload = buffer.getvalue()
        self.context.save_checkpoint(hashlib.sha256(payload).digest() + payload)

    def _keep(self, positions: list[int]) -> None:
        if len(positions) < len(self.alive):
            self.trainer.keep(positions)
            self.alive = [self.alive[position] for position in positions]

    def _drop_pruned(self, step: int, reported: dict[int, dict[str, float | None]]) -> None:
        """Tell how the trials do, and leave out those that their search has seen enough of."""
        left_out = self.context.report(step, reported)
        self.pruned_at |= {index: step for index in left_out}
        self._keep([position for position, index in enumerate(self.alive) if index not in left_out])

    def _drop_diverged(self, loss_T: Tensor, step: int) -> None:
        finite = torch.isfinite(loss_T).tolist()
        if all(finite):
            return
        self.diverged_at |= {index: step for index, good in zip(self.alive, finite, strict=True) if not good}
        self._keep([position for position, good in enumerate(finite) if good])

    def _record(self, step: int) -> None:
        """Append the curves at this step, and every layer's measurements if it is one of the measured steps."""
        evaluation = self.trainer.evaluate()
        finite = torch.isfinite(evaluation.loss)
        self._drop_diverged(evaluation.loss, step)
        columns = {
            name: getattr(evaluation, name)[finite].tolist() for name in ("loss", "objective", "accuracy", "grad_norm")
        }
        rates = self.trainer.lr_at(step)
        reported = {}
        for position, index in enumerate(self.alive):
            row = {name: values[position] for name, values in columns.items()}
            limit = objective_limit(self.trials[index]) if self.dataset.is_balanced else None
            row["objective_gap"] = None if limit is None else row["objective"] - limit
            row["lr"] = rates[position]
            reported[index] = defined(row)
            self.curves[index].append({"step": step, "split": "train", **reported[index]})
            if step in self.measured_steps:
                self.metrics[index] += self.layers.metrics(position, step, self.trials[index]["rank_tol"])
        if 0 < step < self.num_steps:
            self._drop_pruned(step, reported)


def _unpack(content: bytes) -> dict[str, Any]:
    """Return what `_save` wrote; torch notices most damage itself, but not a changed bit in a tensor."""
    digest, payload = content[:32], content[32:]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError("its checksum is wrong")
    saved: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    if saved["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"its format is {saved['format']}, this version writes {CHECKPOINT_FORMAT}")
    return saved


def _load(params: Params, context: TaskContext) -> Dataset:
    """Return the training set as the network reads it: transformers read an image patch by patch."""
    name = params["dataset"]
    dataset = load_dataset(
        name,
        context.data,
        samples_per_class=params["samples_per_class"],
        data_seed=params["data_seed"],
        normalize=params["normalize"],
        context_length=context_length(params),
        vocabulary_size=vocabulary_size(params),
        dtype=params["dtype"],
    )
    shape = DATASETS[name].image_shape
    if shape is None or not is_transformer(params):
        return dataset
    return dataclasses.replace(dataset, x_ND=cut_into_patches(dataset.x_ND, shape, patch_size(params)))


def _network(params: Params, dataset: Dataset) -> Network:
    if is_transformer(params):
        is_text, positions = DATASETS[params["dataset"]].is_text, num_positions(params)
        return Transformer(
            attention_layers=int(params["arch"][1]),
            mlp_layers=int(params["arch"][2]),
            pre_norm=params["norm"] == "pre",
            depth=params["depth"],
            width=params["width"],
            positions=positions,
            patch_dimensions=None if is_text else dataset.x_ND.shape[1] // positions,
            vocabulary_size=vocabulary_size(params) if is_text else None,
            num_classes=len(dataset.class_counts_K),
            last_bias=has_last_bias(params),
        )
    return ResidualNetwork(
        linear_layers=1 if params["arch"] == "rn1" else 2,
        pre_norm=params["norm"] == "pre",
        depth=params["depth"],
        width=params["width"],
        input_dimensions=dataset.x_ND.shape[1],
        num_classes=len(dataset.class_counts_K),
        last_bias=has_last_bias(params),
    )


def _training_plan(params: Params, dtype: torch.dtype, num_steps: int) -> TrainingPlan:
    return TrainingPlan(
        loss=params["loss"],
        optimizer=params["optimizer"],
        schedule=params["schedule"],
        num_steps=num_steps,
        batch_size=params["batch_size"],
        init=params["init"],
        clip_norm=params["clip_norm"],
        dtype=dtype,
    )


def _hyperparameters(params: Params) -> Hyperparameters:
    return Hyperparameters(
        seed=params["seed"],
        lr=learning_rate(params),
        momentum=params["momentum"],
        weight_decay=params["weight_decay"],
        weight_decay_last=weight_decay_last(params),
    )


def _curve_steps(last: int) -> list[int]:
    """Return some eight steps a decade, 0 and the last among them."""
    exponents = range(int(8 * math.log10(last)) + 1) if last > 1 else range(1)
    return sorted({0, last, *(round(10 ** (exponent / 8)) for exponent in exponents), *log_spaced_steps(last)})


def _rows_of_state(state: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """Return the trainer's state with only some of its trials."""
    chosen = {key: value[rows] for key, value in state.items() if key.endswith(("_TP", "_TN")) and value is not None}
    return {**state, **chosen, "generators": [state["generators"][row] for row in rows.tolist()]}
