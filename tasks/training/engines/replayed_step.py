"""CUDA-graph replay of a step, which launches all operations at once where launching them one by one takes longer.

A recorded step reads and writes the tensors it was recorded with: the state in place, and inputs that are copied into them
before each replay. Shapes: T trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from depthrate.tasks.training.step import nearly_equal

CHECK_RTOL = 1e-4
"""Relative tolerance between a replayed step and a plain one: far above rounding, far below a fault."""

Recorder = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Records a function without running it. Returns the tensor with its result after each replay, and the replay function."""


class ReplayError(RuntimeError):
    """Raised when a step cannot be recorded, or its replay gives other numbers."""


def cuda_graph(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """Record a function's GPU operations as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return result, graph.replay


class ReplayedStep:
    """Runs a step, which updates its state in place, by replaying a recording."""

    def __init__(
        self,
        run: Callable[..., Tensor],
        state: Sequence[Tensor],
        inputs: Sequence[Tensor],
        record: Recorder = cuda_graph,
    ):
        """Record a step and take it once, comparing replay with a plain run. The state advances by one step.

        Raises:
            ReplayError: The step cannot be recorded, or its replay differs. The state is restored.
        """
        self._inputs = [tensor.clone() for tensor in inputs]
        previous = [tensor.clone() for tensor in state]
        try:
            self._loss_T, self._replay = record(lambda: run(*self._inputs))
            replayed = [self(*inputs), *(tensor.clone() for tensor in state)]
            _copy_into(state, previous)
            plain = [run(*inputs), *state]
        except RuntimeError as error:
            _copy_into(state, previous)
            raise ReplayError(f"a step cannot be recorded: {error}") from error
        # a GPU may sum in another order
        if not all(nearly_equal(one, other, CHECK_RTOL) for one, other in zip(plain, replayed, strict=True)):
            _copy_into(state, previous)
            raise ReplayError("the replayed step differs from the plain one")
        self.first_T = plain[0]
        """Losses of the step that was taken."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take a step from these inputs. Return its losses [T]."""
        _copy_into(self._inputs, inputs)
        self._replay()
        return self._loss_T.clone()


def _copy_into(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
