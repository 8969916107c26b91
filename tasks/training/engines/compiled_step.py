"""Compiled steps: a program on disk, run over a pack's trials in groups.

The group size is chosen by timing the first training steps. It determines cache use but no results, since a trial's numbers do
not depend on the other trials.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from depthrate.tasks.training.engines.replayed_step import ReplayedStep, ReplayError

log = logging.getLogger(__name__)

TRIES = 3
"""Steps timed per group size. The fastest of them counts."""


class CompiledStep:
    """Runs a `StepProgram` on tensors, in place."""

    def __init__(self, package: Path, *, shares_batches: bool, device: str):
        self._replays = device == "cuda"
        # The public `torch._inductor.aoti_load_package` would also import the compiler: 2 s and 80 MB per worker.
        # `self._replays` selects single-threaded mode: a program for several threads queries events, which CUDA graphs forbid.
        self._program = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", self._replays, 1, -1)
        self._shares_batches = shares_batches
        self._replayed: ReplayedStep | None = None
        self._state: list[Tensor] = []
        self._parts: list[tuple[slice, list[Tensor]]] = []
        self.size: int | None = None
        """Trials per group, None until it is chosen."""
        self._timings: dict[int, list[float]] = {}

    @property
    def is_bound(self) -> bool:
        """Whether tensors are bound."""
        return bool(self._state)

    def bind(self, state: Sequence[Tensor]) -> None:
        """Bind tensors [T, ...]: the inputs of `StepProgram.run` up to the momentum, in its order."""
        self._state = list(state)
        self._split(self.size or self._sizes()[0])

    def release(self) -> None:
        """Release the tensors and discard the timings."""
        self._state, self._parts, self._timings, self._replayed = [], [], {}, None

    def __call__(self, rate_T1: Tensor, correction: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        """Advance all trials by one step and return their losses [T]."""
        if self.size is None:
            return self._time_next_size(rate_T1, correction, x, labels)
        if self._replays:
            return self._replay(rate_T1, correction, x, labels)
        return self._run(rate_T1, correction, x, labels)

    def _replay(self, rate_T1: Tensor, correction: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        """Replay the step, recording it first if necessary. If recording fails, run all steps without replay."""
        inputs, run = [rate_T1, correction, x, labels], self._run
        if self._shares_batches:  # the whole training set, whose address does not change
            inputs, run = inputs[:2], functools.partial(self._run, x=x, labels=labels)
        if self._replayed is not None:
            return self._replayed(*inputs)
        try:
            self._replayed = ReplayedStep(run, self._state, inputs)
        except ReplayError as error:
            log.warning("steps are not replayed, because %s", error)
            self._replays = False
            return self._run(rate_T1, correction, x, labels)
        return self._replayed.first_T

    def _run(self, rate_T1: Tensor, correction: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        losses = []
        for rows, state in self._parts:
            batch = (x, labels) if self._shares_batches else (x[rows], labels[rows])
            losses += self._program.boxed_run([*state, rate_T1[rows], correction, *batch])
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    def _time_next_size(self, rate_T1: Tensor, correction: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        """Time a step with the least timed size. Choose the fastest size once all have been timed."""
        size = min(self._sizes(), key=lambda size: len(self._timings.get(size, ())))
        self._split(size)
        started = time.thread_time()
        loss_T = self._run(rate_T1, correction, x, labels)
        self._timings.setdefault(size, []).append(time.thread_time() - started)
        if all(len(self._timings.get(size, ())) >= TRIES for size in self._sizes()):
            self.size = min(self._sizes(), key=lambda size: min(self._timings[size]))
            self._split(self.size)
        return loss_T

    def _sizes(self) -> list[int]:
        """Return the group sizes to time: powers of two and all trials, on a GPU all trials only."""
        num_trials = len(self._state[0])
        if self._state[0].device.type != "cpu":
            return [num_trials]
        powers = [2**exponent for exponent in range(num_trials.bit_length()) if 2**exponent < num_trials]
        return [num_trials, *reversed(powers)]

    def _split(self, size: int) -> None:
        num_trials = len(self._state[0])
        slices = [slice(start, min(start + size, num_trials)) for start in range(0, num_trials, size)]
        self._parts = [(rows, [tensor[rows] for tensor in self._state]) for rows in slices]
