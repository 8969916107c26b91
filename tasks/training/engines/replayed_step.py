"""A step recorded once and replayed: a GPU gets all of it at once, where starting its operations takes longer than they do.

What is recorded reads and writes the very tensors it was recorded with: the state in place, and inputs that are copied there
before each replay. Shapes: T trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from depthrate.tasks.training.step import nearly_equal

CHECK_RTOL = 1e-4
"""What a replayed step may differ from a plain one: far more than rounding, far less than a fault."""

Recorder = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Records a function without running it; returns the tensor that holds its result after each replay, and what replays it."""


class ReplayError(RuntimeError):
    """A step cannot be recorded, or does not do the same when it is replayed."""


def cuda_graph(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """Record what a function has a GPU do."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return result, graph.replay


class ReplayedStep:
    """Runs a step, which changes its state in place, by replaying what was recorded of it."""

    def __init__(
        self,
        run: Callable[..., Tensor],
        state: Sequence[Tensor],
        inputs: Sequence[Tensor],
        record: Recorder = cuda_graph,
    ):
        """Record a step, and take it once both ways from these inputs: the state is one step further after it.

        Raises:
            ReplayError: it cannot be recorded, or replayed it does something else; the state is as it was.
        """
        self._inputs = [each.clone() for each in inputs]
        before = [each.clone() for each in state]
        try:
            self._loss_T, self._replay = record(lambda: run(*self._inputs))
            replayed = [self(*inputs), *(each.clone() for each in state)]
            _copy_into(state, before)
            plain = [run(*inputs), *state]
        except RuntimeError as error:
            _copy_into(state, before)
            raise ReplayError(f"a step cannot be recorded: {error}") from error
        # a GPU may add up in another order
        if not all(nearly_equal(one, other, CHECK_RTOL) for one, other in zip(plain, replayed, strict=True)):
            _copy_into(state, before)
            raise ReplayError("a step that is replayed does not give the numbers of the one that was recorded")
        self.first_T = plain[0]
        """The losses of the step that was taken."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take a step from these inputs and return its losses, [T]."""
        _copy_into(self._inputs, inputs)
        self._replay()
        return self._loss_T.clone()


def _copy_into(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
