"""Metrics that a trial requests by name (`named_columns`), computed trial by trial, None where undefined.

Shapes: T trials, N samples, D feature dimensions, E feature dimensions of the last layer, I input dimensions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.measures.geometry import effective_rank, intrinsic_dimension, linear_cka
from depthrate.tasks.measures.labelled import FeaturesError
from depthrate.tasks.measures.named_columns import CKA_LAST, INPUT

MAX_TWONN_SAMPLES = 1000
"""Maximum number of samples for TwoNN. Larger sets are subsampled evenly."""


Named = Mapping[str, Callable[[Tensor, Tensor, Tensor | None], Mapping[str, float]] | None]
"""Requested metric -> None, or a custom function: (features [N, D], labels, last weight [K, D] or None) -> numbers by column.
"""


class NamedMeasurements:
    """Computes the requested metrics. `probe` scores a linear probe on features [N, D]. Custom functions get `labels`."""

    def __init__(self, names: Named, probe: Callable[[Tensor], float], labels: Tensor):
        measures: dict[str, Callable[[Tensor], float]] = {
            "effective_rank": effective_rank,
            "intrinsic_dimension": _dimension,
            "linear_probe": probe,
        }
        self._alone = {name: measure for name, measure in measures.items() if name in names}
        self._custom, self._labels = [function for function in names.values() if function is not None], labels
        self._pairs = {name for name in (INPUT, CKA_LAST) if name in names}

    @property
    def needs_other_layers(self) -> bool:
        """Whether a metric compares layers, so that features must be computed a second time."""
        return bool(self._pairs)

    def measure_alone(self, h_TND: Tensor, weight_TKD: Tensor | None) -> dict[str, Tensor]:
        """Compute the metrics that need one layer only, each [T]. `weight_TKD` is the last layer's, if it has this width."""
        metrics = {name: measure_per_trial(measure, h_TND) for name, measure in self._alone.items()}
        for function in self._custom:
            weights = [None] * len(h_TND) if weight_TKD is None else weight_TKD
            rows = [function(h_ND, self._labels, weight) for h_ND, weight in zip(h_TND, weights, strict=True)]
            metrics |= {name: h_TND.new_tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}
        return metrics

    def measure_against_others(self, h_TND: Tensor, last_TNE: Tensor, x_NI: Tensor | None) -> dict[str, Tensor]:
        """Compute the metrics that compare a layer with the last one or the input, each [T]. `x_NI` is None for text."""
        metrics, h_TND = {}, h_TND.expand(len(last_TNE), *h_TND.shape[1:])  # the input is the same for all trials
        if INPUT in self._pairs:
            inputs = None if x_NI is None else x_NI.flatten(1)
            metrics[INPUT] = measure_per_trial(
                lambda h_ND: float("nan") if inputs is None else linear_cka(inputs, h_ND), h_TND
            )
        if CKA_LAST in self._pairs:
            metrics[CKA_LAST] = measure_per_trial(linear_cka, h_TND, last_TNE)
        return metrics


def measure_per_trial(measure: Callable[..., float | None], *tensors: Tensor) -> Tensor:
    """Apply a metric to each trial's slice of the tensors [T, ...]. NaN where it is undefined."""

    def number(*slices: Any) -> float:
        try:
            value = measure(*slices)
        except (FeaturesError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # squares of huge features
            return float("nan")
        return float("nan") if value is None else value

    numbers = [number(*slices) for slices in zip(*tensors, strict=True)]
    return torch.tensor(numbers, dtype=torch.float64, device=tensors[0].device)


def _dimension(h_ND: Tensor) -> float:
    stride = -(-len(h_ND) // MAX_TWONN_SAMPLES)
    return intrinsic_dimension(h_ND[::stride])
