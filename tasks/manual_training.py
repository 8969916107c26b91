"""Custom training loops that survive interruptions: `with context.training(model, optimizer) as run:`.

Importable without torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, cast

from depthrate.tasks.interface import Diverged, Interrupted, TaskContext, has_diverged


class ManualTraining:
    """Adds `training` to a task's context."""

    def training(self, model: Any, optimizer: Any, **others: Any) -> TrainingRun:
        """Create a resumable run, as in `with context.training(model, optimizer) as run:`, to loop over `run.steps(n)`.

        Other objects, like `scheduler=scheduler`, are saved and restored like model and optimiser.

        Raises:
            TypeError: An object has no state_dict.
        """
        return TrainingRun(cast(TaskContext, self), {"model": model, "optimizer": optimizer, **others})


class TrainingRun:
    """Resumes a loop from its checkpoint, saves when a checkpoint is due, stops on request, and records curves.

    Objects have `state_dict` and `load_state_dict`. The random states of torch, numpy and Python are saved too, so that a
    resumed loop draws the same numbers as an uninterrupted one.
    """

    def __init__(self, context: TaskContext, objects: Mapping[str, Any]):
        for name, value in objects.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise TypeError(
                    f"context.training: {name} is a {type(value).__name__} without state_dict and load_state_dict. Pass "
                    "modules, optimisers, schedulers, or an object with both."
                )
        self._context, self._objects = context, objects
        self.step = 0
        """Steps done, including those before an interruption."""
        self.curves: list[dict[str, Any]] = []
        """Logged rows of the table `curves`."""

    def __enter__(self) -> TrainingRun:
        """Resume from the checkpoint of an earlier attempt, if one exists."""
        from depthrate.tasks.training.checkpoint import load_checkpoint

        saved = load_checkpoint(self._context)
        if saved is not None:
            self._restore(saved)
        self._context.show_curves({trial_id: self.curves for trial_id in self._context.trial_ids[:1]})
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Check the last loss. The checkpoint is deleted once the trial is committed.

        Raises:
            Diverged: The last logged loss is NaN or infinite. The logged rows become the trial's result.
        """
        rows = ((row["step"], row["split"], row.get("loss")) for row in self.curves)
        if kind is None and len(self._context.trial_ids) == 1 and has_diverged(rows):
            raise Diverged(self.curves)

    def steps(self, num_steps: int) -> Iterator[int]:
        """Yield the remaining steps (or epochs) of 0 to num_steps - 1. Between steps, save when due and stop on request.

        Raises:
            Interrupted: A stop was requested, and a checkpoint was saved.
        """
        while self.step < num_steps:
            yield self.step
            self.step += 1
            self._context.progress(self.step, num_steps)
            if self._context.should_stop():
                self._save()
                raise Interrupted
            if self.step < num_steps and self._context.checkpoint_due():
                self._save()

    def log(self, step: int, *, split: str = "train", **values: Any) -> None:
        """Add a row of numbers to the table `curves`: loss, accuracy, or custom columns.

        Raises:
            TypeError: A value is not a number.
        """
        row: dict[str, Any] = {"step": int(step), "split": split}
        for name, value in values.items():
            number = value.item() if hasattr(value, "item") else value
            if number is not None and not isinstance(number, int | float):
                raise TypeError(f"run.log: {name} is a {type(value).__name__}, expected a number")
            row[name] = None if number is None else float(number)
        self.curves.append(row)

    def _restore(self, saved: Mapping[str, Any]) -> None:
        import numpy as np
        import torch

        for name, stateful in self._objects.items():
            stateful.load_state_dict(saved["objects"][name])
        self.step, self.curves = saved["step"], saved["curves"]
        torch.set_rng_state(saved["torch"])
        if saved["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(saved["cuda"])
        kind, keys, *rest = saved["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        version, state, gauss = saved["python"]
        random.setstate((version, tuple(state), gauss))

    def _save(self) -> None:
        import numpy as np
        import torch

        from depthrate.tasks.training.checkpoint import serialise

        kind, keys, *rest = np.random.get_state(legacy=True)
        version, state, gauss = random.getstate()
        content = {
            "objects": {name: stateful.state_dict() for name, stateful in self._objects.items()},
            "step": self.step,
            "curves": self.curves,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "numpy": [str(kind), [int(key) for key in keys], *rest],
            "python": [version, list(state), gauss],
        }
        self._context.save_checkpoint(serialise(content))
