"""Kernel calls with the tensors to which they point, and the number of steps per call.

Shapes: N samples, I input dimensions.
"""

import time

import torch
from torch import Tensor

from depthrate.tasks.native.library import AnyCall, Call, Library
from depthrate.tasks.networks.network import Kernels

CALL_S = 0.2
"""Target for the maximum seconds per call, which bounds the delay before a stop request is noticed."""
Field = Tensor | float | None


class BoundCall:
    """A kernel call together with the tensors it points to, which it keeps alive."""

    def __init__(self, library: Library, fields: AnyCall, **values: Field):
        """Set all fields that determine the scratch memory, and allocate it."""
        self._library, self.fields = library, fields
        self._tensors: dict[str, Tensor] = {}
        self.set_fields(**values)
        self.set_fields(scratch=torch.zeros(library.scratch_bytes(fields), dtype=torch.uint8, device=library.device))

    def set_fields(self, **values: Field) -> None:
        """Set fields. A tensor is passed as its address and kept alive until its field is set again."""
        for name, value in values.items():
            self._tensors.pop(name, None)
            if isinstance(value, Tensor):
                assert value.is_contiguous(), name
                self._tensors[name] = value
            setattr(self.fields, name, value.data_ptr() if isinstance(value, Tensor) else value)

    def run(self) -> None:
        """Run the kernels on the current fields."""
        self._library.run(self.fields)


class NativeCall(BoundCall):
    """A call with a network's arguments and samples, the common part of steps, evaluation and polish."""

    fields: Call

    def __init__(self, library: Library, kernels: Kernels, loss: str, x_NI: Tensor, labels_N: Tensor, **values: Field):
        """Set the fields. A batch is all samples unless `batch` is passed."""
        samples: dict[str, Field] = {"batch": len(x_NI), "x_NI": x_NI.contiguous(), "labels_N": labels_N.contiguous()}
        super().__init__(library, Call(is_mse=loss == "mse", **kernels.arguments), **{**samples, **values})


class Pace:
    """Adaptive number of steps per call. It bounds the delay before a stop request is noticed and does not affect results."""

    def __init__(self) -> None:
        self.steps_per_call = 1

    def run(self, call: BoundCall, num_steps: int) -> None:
        """Run a call of `num_steps` steps, and adapt the number of steps to its duration."""
        started = time.perf_counter()
        call.run()
        fitting_steps = num_steps * CALL_S / max(time.perf_counter() - started, 1e-6)
        self.steps_per_call = max(1, min(2 * self.steps_per_call, int(fitting_steps)))
