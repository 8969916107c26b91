"""Mini-batches of streamed samples, in the same seeded order as samples in memory.

Shapes: T trials, N samples, B batch, I input dimensions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import SampleStream
from depthrate.tasks.training.training_plan import order_bytes


class StreamedBatches:
    """Draws the batches of a pack's trials. Trials with equal seeds share their batches, which are read once."""

    def __init__(
        self, samples: SampleStream, batch_size: int, seeds: Sequence[int], generators: Mapping[int, torch.Generator]
    ):
        """Start before the first batch.

        Args:
            samples: The stream to read.
            batch_size: Samples per batch.
            seeds: Seed of each trial.
            generators: Generator of the order, by seed.
        """
        self._samples, self._batch_size, self._seeds, self._generators = samples, batch_size, list(seeds), generators
        self._orders: dict[int, Tensor] = {}
        """Sample indices [N] in the order of the current epoch, by seed."""
        self._begun: dict[int, Tensor] = {}
        """Generator state before drawing the order, by seed: checkpoints store it, and resuming draws the order again."""
        self._position = 0

    def next(self) -> tuple[Tensor, Tensor]:
        """Read the next batch of each trial, [T, B, I], and its labels [T, B]. An incomplete last batch is skipped.

        Raises:
            DatasetError: A sample cannot be read, or differs in form from the other samples.
        """
        if not self._orders or self._position + self._batch_size > self._samples.num_samples:
            self._draw_orders()
        rows = slice(self._position, self._position + self._batch_size)
        self._position += self._batch_size
        read = {seed: self._samples.read(order[rows].long().numpy()) for seed, order in self._orders.items()}
        x_TBI, labels_TB = (
            torch.stack([torch.from_numpy(read[seed][part]) for seed in self._seeds]) for part in (0, 1)
        )
        return x_TBI, labels_TB

    def select(self, trials: Sequence[int]) -> None:
        """Continue with these trials only."""
        self._seeds = [self._seeds[trial] for trial in trials]
        self._orders = {seed: order for seed, order in self._orders.items() if seed in self._seeds}

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state`."""
        return {"position": self._position, "begun": dict(self._begun)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state`, which may belong to a pack with additional seeds."""
        if not state["begun"]:
            return
        for seed in set(self._seeds):
            self._generators[seed].set_state(state["begun"][seed])
        self._draw_orders()
        self._position = state["position"]

    def _draw_orders(self) -> None:
        count = self._samples.num_samples
        dtype = torch.int32 if order_bytes(count) < 8 * count else torch.int64
        self._begun, self._orders, self._position = {}, {}, 0
        for seed in dict.fromkeys(self._seeds):
            self._begun[seed] = self._generators[seed].get_state()
            self._orders[seed] = torch.randperm(count, generator=self._generators[seed]).to(dtype)
