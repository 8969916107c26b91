"""Replay of a training step on a GPU: its operations are recorded once as a CUDA graph and then launched together.

A GPU executes most operations of a small network faster than the host launches them. The graph holds the operations of the
eager step on the same memory, so a replayed step gives the eager step's numbers to the bit.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

log = logging.getLogger(__name__)

WARM_UP_STEPS = 3
"""Number of steps before the recording. In them libraries allocate their workspaces, which a recording must not do."""

TakeStep = Callable[..., Tensor]
"""Takes tensors, changes a trainer's state in place by one step, and returns the losses [T] before it."""


class ReplayedStep:
    """Takes steps of one function of tensors, first one operation at a time, then as a recording.

    The function's memory, except its arguments, must stay in place. It is not kept, because its owner keeps this object: a
    reference cycle would hold the memory of both until a garbage collection.
    """

    def __init__(self) -> None:
        self._stream = SideStream()
        self._steps_before_recording: float = WARM_UP_STEPS
        self._inputs: list[Tensor] = []
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, take: TakeStep, inputs: Sequence[Tensor]) -> Tensor:
        """Take a step with these arguments and return its losses [T]. Every call needs the same function and shapes."""
        if self._replay is None and self._steps_before_recording == 0:
            self._record(take, inputs)
        if self._replay is None:
            self._steps_before_recording -= 1
            return self._stream.run(partial(take, *inputs))
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept.copy_(given)
        return self._replay().clone()

    def _record(self, take: TakeStep, inputs: Sequence[Tensor]) -> None:
        """Record the step, unless it cannot be recorded because the host reads one of its numbers."""
        self._inputs = [tensor.clone() for tensor in inputs]
        try:
            self._replay = self._stream.record(partial(take, *self._inputs))
        except torch.OutOfMemoryError:  # the pack is split, as if an eager step had run out of memory
            raise
        except RuntimeError as error:
            log.warning("steps are launched one operation at a time, because they cannot be recorded: %s", error)
            self._inputs, self._steps_before_recording = [], math.inf


class SideStream:
    """A stream beside the default one, as a recording needs it."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        """Run a function. Work before and after it waits for it as if it ran on the default stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = function()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record a function's operations without executing them. Return a function that executes them."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            result = function()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay
