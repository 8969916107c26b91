"""Mini-batches of samples that are read when they are drawn, in the seeded order in which held samples are drawn.

Shapes: T trials, N samples, B batch, I numbers of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import SampleStream
from depthrate.tasks.training.training_plan import order_bytes


class StreamedBatches:
    """Draws the batches of a pack's trials; trials of one seed draw the same, which is read once for all of them."""

    def __init__(
        self,
        samples: SampleStream,
        batch_size: int,
        seeds: Sequence[int],
        generators: Mapping[int, torch.Generator],
    ):
        """Begin before the first batch; seeds: of each trial; generators: of the order, by seed."""
        self._samples, self._batch_size, self._seeds, self._generators = samples, batch_size, list(seeds), generators
        self._orders: dict[int, Tensor] = {}
        """Samples [N] in the order of this pass over them, by seed."""
        self._begun: dict[int, Tensor] = {}
        """What each generator was before it drew them: an order is drawn again rather than saved."""
        self._position = 0

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the next batch of each trial, [T, B, I], and its labels [T, B]; an incomplete last batch is left out.

        Raises:
            DatasetError: a sample cannot be read, or is not of the form of the others.
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
        """Go on with these trials only."""
        self._seeds = [self._seeds[trial] for trial in trials]
        self._orders = {seed: order for seed, order in self._orders.items() if seed in self._seeds}

    def state(self) -> dict[str, Any]:
        """Return all that drawing needs to go on."""
        return {"position": self._position, "begun": dict(self._begun)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, of a pack that had these seeds among others."""
        if not state["begun"]:
            return
        for seed in set(self._seeds):
            self._generators[seed].set_state(state["begun"][seed])
        self._draw_orders()
        self._position = state["position"]

    def _draw_orders(self) -> None:
        count = self._samples.num_samples
        kept_as = torch.int32 if order_bytes(count) < 8 * count else torch.int64
        self._begun, self._orders, self._position = {}, {}, 0
        for seed in dict.fromkeys(self._seeds):
            self._begun[seed] = self._generators[seed].get_state()
            self._orders[seed] = torch.randperm(count, generator=self._generators[seed]).to(kept_as)
