"""Measures of a layer what its trial asks for by name (`named_columns`): trial by trial, null where it is not defined.

Shapes: T trials, N samples, D numbers of a feature, E of a last one, I of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.measures.geometry import effective_rank, intrinsic_dimension, linear_cka
from depthrate.tasks.measures.labelled import FeaturesError
from depthrate.tasks.measures.named_columns import CKA_LAST, INPUT

MAX_TWONN_SAMPLES = 1000
"""Samples whose distances TwoNN compares; of more, so many at even distances."""


class NamedMeasurements:
    """The measurements of these names; `probe` scores a linear probe on features [N, D]."""

    def __init__(self, names: Collection[str], probe: Callable[[Tensor], float]):
        each: dict[str, Callable[[Tensor], float]] = {
            "effective_rank": effective_rank,
            "intrinsic_dimension": _dimension,
            "linear_probe": probe,
        }
        self._alone = {name: measure for name, measure in each.items() if name in names}
        self._pairs = {name for name in (INPUT, CKA_LAST) if name in names}

    @property
    def needs_other_layers(self) -> bool:
        """Whether layers are compared with others, for which they are asked a second time."""
        return bool(self._pairs)

    def measure_alone(self, h_TND: Tensor) -> dict[str, Tensor]:
        """Return what features tell alone, each [T]."""
        return {name: measure_per_trial(measure, h_TND) for name, measure in self._alone.items()}

    def measure_against_others(self, h_TND: Tensor, last_TNE: Tensor, x_NI: Tensor | None) -> dict[str, Tensor]:
        """Return what features tell beside the last layer's and the input, which is null where it is no numbers; each [T]."""
        found, h_TND = {}, h_TND.expand(len(last_TNE), *h_TND.shape[1:])  # the input is the same for all trials
        if INPUT in self._pairs:
            inputs = None if x_NI is None else x_NI.flatten(1)
            found[INPUT] = measure_per_trial(
                lambda h_ND: float("nan") if inputs is None else linear_cka(inputs, h_ND), h_TND
            )
        if CKA_LAST in self._pairs:
            found[CKA_LAST] = measure_per_trial(linear_cka, h_TND, last_TNE)
        return found


def measure_per_trial(measure: Callable[..., float | None], *tensors: Tensor) -> Tensor:
    """Return a measurement of each trial's slice of these tensors [T, ...]: NaN where it is not defined."""

    def number(*slices: Any) -> float:
        try:
            found = measure(*slices)
        except (FeaturesError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # squares of huge features
            return float("nan")
        return float("nan") if found is None else found

    return torch.tensor([number(*slices) for slices in zip(*tensors, strict=True)], dtype=torch.float64)


def _dimension(h_ND: Tensor) -> float:
    stride = -(-len(h_ND) // MAX_TWONN_SAMPLES)
    return intrinsic_dimension(h_ND[::stride])
