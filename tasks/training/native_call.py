"""A call of kernels on samples: what steps, evaluation and polish give it alike, and the tensors whose addresses it holds.

Shapes: N samples, I input dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthrate.tasks.native.library import Call, Library
from depthrate.tasks.networks.network import Network


class NativeCall:
    """A call of one library with a network's arguments on some samples, and the memory it works in."""

    def __init__(
        self,
        library: Library,
        network: Network,
        loss: str,
        x_NI: Tensor,
        labels_N: Tensor,
        **given: Tensor | float | None,
    ):
        """Give it besides what its memory depends on; its batch is all samples unless that is given."""
        kernels = network.kernels()
        assert kernels is not None
        self._held: dict[str, Tensor] = {}
        self.fields = Call(is_mse=loss == "mse", **kernels.arguments)
        samples = {"x_NI": x_NI.contiguous(), "labels_N": labels_N.contiguous()}
        self.give(**{"batch": len(x_NI), **samples, **given})
        self.give(scratch=torch.zeros(library.scratch_bytes(self.fields), dtype=torch.uint8))

    def give(self, **given: Tensor | float | None) -> None:
        """Set fields; of a tensor its address, and it is held until another value takes its place."""
        for name, value in given.items():
            self._held.pop(name, None)
            if isinstance(value, Tensor):
                assert value.is_contiguous(), name
                self._held[name] = value
            setattr(self.fields, name, value.data_ptr() if isinstance(value, Tensor) else value)
