"""A call of kernels: the tensors whose addresses it holds, and how many steps it takes.

Shapes: N samples, I input dimensions.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from depthrate.tasks.native.library import AnyCall, Call, Library
from depthrate.tasks.networks.network import Network

CALL_S = 0.2
"""Seconds that a call should take at most."""
Field = Tensor | float | None


class BoundCall:
    """A call with the tensors that it points to."""

    def __init__(self, library: Library, fields: AnyCall, **given: Field):
        """Give it besides the library all that its memory depends on."""
        self._library, self.fields = library, fields
        self._held: dict[str, Tensor] = {}
        self.set_fields(**given)
        self.set_fields(scratch=torch.zeros(library.scratch_bytes(fields), dtype=torch.uint8))

    def set_fields(self, **given: Field) -> None:
        """Set fields; of a tensor its address, and it is held until another value takes its place."""
        for name, value in given.items():
            self._held.pop(name, None)
            if isinstance(value, Tensor):
                assert value.is_contiguous(), name
                self._held[name] = value
            setattr(self.fields, name, value.data_ptr() if isinstance(value, Tensor) else value)

    def run(self) -> None:
        """Take steps, or form what is asked for."""
        self._library.run(self.fields)


class NativeCall(BoundCall):
    """A call with a network's arguments on some samples: what steps, evaluation and polish give it alike."""

    fields: Call

    def __init__(self, library: Library, network: Network, loss: str, x_NI: Tensor, labels_N: Tensor, **given: Field):
        """Take a batch to be all samples, unless it is given."""
        kernels = network.kernels()
        assert kernels is not None
        samples: dict[str, Field] = {"batch": len(x_NI), "x_NI": x_NI.contiguous(), "labels_N": labels_N.contiguous()}
        super().__init__(library, Call(is_mse=loss == "mse", **kernels.arguments), **{**samples, **given})


class Pace:
    """How many steps fit into a call, as far as is known: it decides how soon a worker hears of a wish to stop, and no number
    depends on it."""

    def __init__(self) -> None:
        self.steps_per_call = 1

    def run(self, call: BoundCall, num_steps: int) -> None:
        """Run a call of so many steps, and learn from the time it took."""
        started = time.perf_counter()
        call.run()
        fitting = num_steps * CALL_S / max(time.perf_counter() - started, 1e-6)
        self.steps_per_call = max(1, min(2 * self.steps_per_call, int(fitting)))
