"""The features' path through the layers: positions, step lengths, monotonicity, and the straight line between its ends.

Along h(t) = (1-t) h(0) + t h(1) every metric of class means and scatter is a polynomial in t whose coefficients are the
classes' first, second and cross moments of (h(0), h(1)). The prediction is therefore exact, and the features are read only
once. Nearest class means additionally need four numbers per sample and class.

Computed in float64. Shapes: T trials, N samples, D feature dimensions, K classes.
Source: P3 Progressive Feedforward Collapse of ResNet Training, section IV.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from depthrate.tasks.measures.labelled import as_features, as_labels
from depthrate.tasks.measures.measure import as_columns
from depthrate.tasks.measures.neural_collapse import (
    class_collapse,
    class_means,
    class_moments,
    distance_to_simplex,
    pinv_trace,
    sample_labels,
    undefined_if_equal,
)


def path_start(shapes: Sequence[tuple[int, ...]]) -> int:
    """Find the index of the path's first layer from the layers' feature shapes.

    Features of different widths cannot be subtracted, so the path is the last run of layers with the last layer's shape: all
    layers of a network of constant width, and the last stage of a network with stages, as in P3.
    """
    start = len(shapes)
    while start > 0 and shapes[start - 1] == shapes[-1]:
        start -= 1
    return start


def step_length(previous_TND: Tensor, h_TND: Tensor) -> Tensor:
    """Compute the path length from one layer to the next, [T]: the sum of ||h^{l+1} - h^l|| over samples.

    Each norm has the features' precision, as the difference has it anyway. The sum is in float64.
    """
    return torch.linalg.vector_norm(h_TND - previous_TND, dim=-1).double().sum(-1)


def relative_positions(steps: Sequence[float | None]) -> list[float | None]:
    """Compute each layer's relative position: the ratio of the path length up to it to the total length, from 0 to 1.

    The result has one entry more than `steps`. All are None if a step is, or if the total length is 0.
    """
    path = [0.0]
    for length in steps:
        path.append(path[-1] + (math.nan if length is None else length))
    return [length / path[-1] if path[-1] > 0 else None for length in path]


def monotonicity(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Compute the largest rise of nc1 and pfc2 and the largest fall of ncc_accuracy between consecutive layers' rows.

    Returns:
        nc1_rise (relative to nc1 at the first layer), pfc2_rise, ncc_fall, and the code `monotone`: 1 if nc1 ever rises + 2 if
        pfc2 does + 4 if ncc_accuracy ever falls. 0 is progressive collapse in the sense of P3. None if a layer lacks a number.
    """
    nc1, pfc2, accuracy = ([row.get(name) for row in rows] for name in ("nc1", "pfc2", "ncc_accuracy"))
    steps = (_largest_rise(nc1, 1), _largest_rise(pfc2, 1), _largest_rise(accuracy, -1))
    if steps[0] is not None and nc1[0]:
        steps = (steps[0] / nc1[0], *steps[1:])
    lengths = [step for step in steps if step is not None]
    code = None if len(lengths) < len(steps) else sum(2**bit for bit, step in enumerate(lengths) if step > 0)
    return {**dict(zip(("nc1_rise", "pfc2_rise", "ncc_fall"), steps, strict=True)), "monotone": code}


def _largest_rise(values: Sequence[float | None], sign: int) -> float | None:
    signed = [sign * value for value in values if value is not None]
    if len(signed) < len(values):
        return None
    return max([0.0, *(after - before for before, after in itertools.pairwise(signed))])


Features = Tensor | npt.NDArray[Any]
PREDICTED = ("nc1", "nc1_pinv", "pfc2", "ncc_accuracy")
"""Metrics with a prediction, stored in a column of the same name plus `_geodesic`."""


class Geodesic:
    """The geodesic between two layers' features of one width, stored as moments without the features."""

    def __init__(self, first_ND: Tensor, last_ND: Tensor, class_counts_K: Tensor):
        """Compute the moments of features sorted by class.

        Raises:
            ValueError: The layers have different shapes.
        """
        if first_ND.shape != last_ND.shape:
            raise ValueError(
                f"first features have shape {tuple(first_ND.shape)}, last features {tuple(last_ND.shape)}, expected equal "
                "shapes. Choose layers of one width."
            )
        counts = class_counts_K.tolist()
        self._labels_N = sample_labels(class_counts_K, first_ND.device)
        ends = (first_ND, last_ND)
        means = [class_means(end.double().unsqueeze(0), class_counts_K)[0] for end in ends]
        centres = [mean_KD.mean(0) for mean_KD in means]
        self._centres_2D = torch.stack(centres)
        self._centred_2KD = torch.stack([mean - centre for mean, centre in zip(means, centres, strict=True)])
        roots_2KD = self._centred_2KD / len(counts) ** 0.5
        self._within_22 = first_ND.new_zeros(2, 2, dtype=torch.float64)
        self._scatter: Tensor | None = None
        scores = []
        for label, parts in enumerate(zip(*(torch.split(end, counts) for end in ends), strict=True)):
            deviations = torch.stack([part.double() - mean[label] for part, mean in zip(parts, means, strict=True)])
            self._within_22 += torch.einsum("ind,jnd->ij", deviations, deviations)
            projected = torch.einsum("ind,jkd->nijk", deviations, roots_2KD).flatten(1)
            class_scatter = projected.mT @ projected
            self._scatter = class_scatter if self._scatter is None else self._scatter + class_scatter
            centred = [part.double() - centre for part, centre in zip(parts, centres, strict=True)]
            scores.append(torch.einsum("ind,jkd->nijk", torch.stack(centred), self._centred_2KD))
        self._scores_N22K = torch.cat(scores)

    def at(self, t: float) -> dict[str, float]:
        """Predict the metrics of the interpolated features (1-t) h(0) + t h(1) exactly.

        Args:
            t: Position on the line, 0 at the first layer and 1 at the last.

        Returns:
            nc1, nc1_pinv, pfc2 and ncc_accuracy, as `measure` defines them.
        """
        share_2 = self._within_22.new_tensor([1 - t, t])
        pairs_22 = torch.outer(share_2, share_2)
        num_samples, num_classes = len(self._labels_N), self._centred_2KD.shape[1]
        centred_KD = (share_2.view(2, 1, 1) * self._centred_2KD).sum(0)
        between = centred_KD.square().sum() / num_classes
        within = (pairs_22 * self._within_22).sum() / num_samples
        assert self._scatter is not None
        scatter = self._scatter.view(4, num_classes, 4, num_classes) / num_samples
        scatter_KK = torch.einsum("p,pkql,q->kl", pairs_22.flatten(), scatter, pairs_22.flatten())
        root_KD = centred_KD / num_classes**0.5
        scores_NK = torch.einsum("ij,nijk->nk", pairs_22, self._scores_N22K) - centred_KD.square().sum(1) / 2
        columns = {
            "nc1": within / between,
            "nc1_pinv": pinv_trace(scatter_KK.unsqueeze(0), root_KD.unsqueeze(0))[0],
            "pfc2": distance_to_simplex((centred_KD @ centred_KD.mT).unsqueeze(0))[0],
            "ncc_accuracy": undefined_if_equal(
                (scores_NK.argmax(1) == self._labels_N).double().mean(),
                (centred_KD + share_2 @ self._centres_2D).unsqueeze(0),
                within.unsqueeze(0),
            )[0],
        }
        return {name: value.item() for name, value in columns.items()}

    @property
    def means_cosine(self) -> float | None:
        """Cosine of the first and last centred class means as vectors of K D numbers. None if one end's means coincide."""
        first_KD, last_KD = self._centred_2KD
        return _quotient((first_KD * last_KD).sum(), first_KD.norm() * last_KD.norm())


def geodesic(features_first: Features, features_last: Features, labels: Features) -> Geodesic:
    """Build the geodesic between two layers' features, whose `at(t)` predicts the metrics in between.

    The geodesic is h(t) = (1-t) h(0) + t h(1), sample by sample. Source: P3 Progressive Feedforward Collapse of ResNet
    Training, section IV.

    Args:
        features_first: First layer's features, shape [N, D].
        features_last: Last layer's features of the same samples, shape [N, D].
        labels: Class of each sample, shape [N], 0 to K - 1 in any order.

    Returns:
        The geodesic. It holds moments only, not the features.

    Raises:
        ValueError: The shapes do not match, labels are not classes, or a class has no samples.
    """
    first, last = as_features(features_first), as_features(features_last)
    labels_N = torch.as_tensor(as_labels(labels)).long()
    if len(labels_N) != len(first):
        raise ValueError(
            f"features have shape {tuple(first.shape)} and labels {tuple(labels_N.shape)}, expected [N, D] and [N]"
        )
    order, counts_K = _by_class(labels_N)
    return Geodesic(first[order], last[order], counts_K)


def _by_class(labels_N: Tensor) -> tuple[Tensor, Tensor]:
    counts_K = torch.bincount(labels_N)
    if (counts_K == 0).any():
        raise ValueError(f"class {int(counts_K.argmin())} has no samples. Number classes 0 to K - 1 without gaps.")
    return torch.argsort(labels_N, stable=True), counts_K


def line_distances(first_ND: Tensor, last_ND: Tensor, h_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Compute each sample's distance from the line through its first and last features, and its position on that line.

    Returns:
        Distances [N] relative to the length ||h(1) - h(0)||, and positions [N]: t of the nearest point (1-t) h(0) + t h(1).
        Both are NaN for samples with h(0) = h(1).
    """
    line_ND, offset_ND = (last_ND - first_ND).double(), (h_ND - first_ND).double()
    squared_N = line_ND.square().sum(1)
    position_N = (offset_ND * line_ND).sum(1) / squared_N
    distance_N = (offset_ND - position_N.unsqueeze(1) * line_ND).norm(dim=1) / squared_N.sqrt()
    return torch.where(squared_N > 0, distance_N, torch.nan), torch.where(squared_N > 0, position_N, torch.nan)


def transport_cost(last_ND: Tensor, h_ND: Tensor) -> float | None:
    """Compute the cost of moving every sample to its last features: mean ||h(1) - h||^2 / mean ||h(1) - centre||^2.

    None if all last features coincide.
    """
    last_ND = last_ND.double()
    return _quotient((last_ND - h_ND).square().sum(), (last_ND - last_ND.mean(0)).square().sum())


def _quotient(numerator: Tensor, denominator: Tensor) -> float | None:
    return (numerator / denominator).item() if denominator > 0 else None


def effective_depth(accuracies: Sequence[float | None], layers: Sequence[int], epsilon: float) -> int | None:
    """Find the first layer from which nearest-mean accuracy stays at or above 1 - epsilon. None if the last is below."""
    first = None
    for layer, accuracy in zip(layers, accuracies, strict=True):
        if accuracy is None or not accuracy >= 1 - epsilon:  # NaN, where all class means are equal
            first = None
        elif first is None:
            first = layer
    return first


def add_geodesic(
    rows: Sequence[dict[str, Any]],
    line: Geodesic,
    ends: tuple[Tensor, Tensor],
    layers: Iterable[Tensor],
    epsilon: float,
) -> None:
    """Add the geodesic's columns to the rows of a path's layers, in place.

    Args:
        rows: One row per layer with layer, relative_position, nc1, pfc2 and ncc_accuracy.
        line: Geodesic of the path.
        ends: First and last features, [N, D].
        layers: Features of all layers once more, [N, D] each.
        epsilon: Accuracy tolerance of effective_depth.
    """
    for row, h_ND in zip(rows, layers, strict=True):
        position = row["relative_position"]
        predicted = dict.fromkeys(PREDICTED) if position is None else line.at(position)
        row |= {f"{name}_geodesic": value for name, value in predicted.items()}
        distance_N, position_N = (values[~values.isnan()] for values in line_distances(*ends, h_ND))
        row |= {
            "line_distance": distance_N.mean().item() if len(distance_N) else None,
            "line_distance_spread": distance_N.std(correction=0).item() if len(distance_N) else None,
            "line_position": position_N.mean().item() if len(position_N) else None,
            "transport_cost": transport_cost(ends[1], h_ND),
        }
    accuracies, numbers = [row["ncc_accuracy"] for row in rows], [row["layer"] for row in rows]
    first, last = rows[0]["nc1"], rows[-1]["nc1"]
    rows[-1] |= monotonicity(rows) | {
        "nc1_left": last / first if first and last is not None else None,
        "means_cosine": line.means_cosine,
        "effective_depth": effective_depth(accuracies, numbers, epsilon),
    }


def along_geodesic(
    layers: Callable[[], Iterable[Features]], labels: Features, *, epsilon: float = 0.01
) -> list[dict[str, Any]]:
    """Measure layers of one width and compare them with the geodesic between the first and the last of them.

    Source: P3 Progressive Feedforward Collapse of ResNet Training, section IV.

    Args:
        layers: Function that yields the layers' features, shape [N, D] each. It is called twice, and only the first, the
            last and the current layer are in memory.
        labels: Class of each sample, shape [N], 0 to K - 1 in any order.
        epsilon: Accuracy tolerance of effective_depth.

    Returns:
        One row per layer:
        relative_position, path length from the first layer over the total, 0 to 1.
        nc1, nc1_pinv, pfc2 and ncc_accuracy, and with the suffix `_geodesic` their predictions at that position.
        line_distance, line_distance_spread, mean and standard deviation over samples of the distance from the line
        through a sample's first and last features, relative to their distance.
        line_position, mean over samples of the nearest point's t. transport_cost, remaining cost to the last features.
        The last row also has nc1_rise, pfc2_rise, ncc_fall, monotone, nc1_left, means_cosine, and effective_depth, the
        first layer from which ncc_accuracy stays at or above 1 - epsilon.

    Raises:
        ValueError: No layers, first and last layer of different widths, or a class without samples.
    """
    order, counts_K = _by_class(torch.as_tensor(as_labels(labels)).long())

    def read() -> Iterable[Tensor]:
        return (as_features(layer)[order] for layer in layers())

    rows: list[dict[str, Any]] = []
    steps: list[float] = []
    first = last = None
    for number, h_ND in enumerate(read()):
        collapse = class_collapse(class_moments(h_ND.unsqueeze(0), counts_K))
        rows.append({"layer": number, **as_columns(collapse)})
        if last is not None:
            steps.append(step_length(last, h_ND).item())
        first, last = h_ND if first is None else first, h_ND
    if first is None or last is None:
        raise ValueError("layers() yielded no layers, expected at least 1")
    for row, position in zip(rows, relative_positions(steps), strict=True):
        row["relative_position"] = position
    add_geodesic(rows, Geodesic(first, last, counts_K), (first, last), read(), epsilon)
    return rows
