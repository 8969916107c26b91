"""The straight line between first and last features: what it predicts of the layers between, and how far they are from it.

Along h(t) = (1-t) h(0) + t h(1) every measurement of class means and scatter is a polynomial of t in the classes' first and
second moments of (h(0), h(1)), and of their cross moments, so the prediction is exact, and the features themselves are read
once. Nearest class means need a number a sample and class at both ends, and between them.

Float64. Shapes: N samples, D feature dimensions, K classes.
Source: P3 Progressive Feedforward Collapse of ResNet Training, section IV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from depthrate.tasks.measures.class_means import (
    class_collapse,
    class_means,
    distance_to_simplex,
    pinv_trace,
)
from depthrate.tasks.measures.progressive import monotonicity, relative_positions, step_length

Features = Tensor | npt.NDArray[Any]
PREDICTED = ("nc1", "nc1_pinv", "pfc2", "ncc_accuracy")
"""Measurements that have a prediction, in a column of their name with `_geodesic` behind it."""


class Geodesic:
    """The geodesic between two layers' features of one width, by their moments; it keeps none of the features."""

    def __init__(self, first_ND: Tensor, last_ND: Tensor, class_counts_K: Tensor):
        """Take moments of features sorted by class.

        Raises:
            ValueError: the layers have different shapes.
        """
        if first_ND.shape != last_ND.shape:
            raise ValueError(
                f"first features have shape {tuple(first_ND.shape)}, last ones {tuple(last_ND.shape)}; a line is drawn "
                "between features of one width"
            )
        counts = class_counts_K.tolist()
        self._labels_N = torch.repeat_interleave(class_counts_K)
        ends = (first_ND, last_ND)
        means = [class_means(end.double().unsqueeze(0), class_counts_K)[0] for end in ends]
        centres = [mean_KD.mean(0) for mean_KD in means]
        self._centred_2KD = torch.stack([mean - centre for mean, centre in zip(means, centres, strict=True)])
        roots_2KD = self._centred_2KD / len(counts) ** 0.5
        self._within_22 = first_ND.new_zeros(2, 2, dtype=torch.float64)
        self._scatter: Tensor | None = None
        scores = []
        for label, parts in enumerate(zip(*(torch.split(end, counts) for end in ends), strict=True)):
            deviations = torch.stack([part.double() - mean[label] for part, mean in zip(parts, means, strict=True)])
            self._within_22 += torch.einsum("ind,jnd->ij", deviations, deviations)
            projected = torch.einsum("ind,jkd->nijk", deviations, roots_2KD).flatten(1)
            own = projected.mT @ projected
            self._scatter = own if self._scatter is None else self._scatter + own
            centred = [part.double() - centre for part, centre in zip(parts, centres, strict=True)]
            scores.append(torch.einsum("ind,jkd->nijk", torch.stack(centred), self._centred_2KD))
        self._scores_N22K = torch.cat(scores)

    def at(self, t: float) -> dict[str, float]:
        """Return nc1, nc1_pinv, pfc2 and ncc_accuracy of (1-t) h(0) + t h(1): exact, and at 0 and 1 those of the ends."""
        share_2 = self._within_22.new_tensor([1 - t, t])
        pairs_22 = torch.outer(share_2, share_2)
        num_samples, num_classes = len(self._labels_N), self._centred_2KD.shape[1]
        centred_KD = (share_2.view(2, 1, 1) * self._centred_2KD).sum(0)
        between = centred_KD.square().sum() / num_classes
        assert self._scatter is not None
        scatter = self._scatter.view(4, num_classes, 4, num_classes) / num_samples
        scatter_KK = torch.einsum("p,pkql,q->kl", pairs_22.flatten(), scatter, pairs_22.flatten())
        root_KD = centred_KD / num_classes**0.5
        scores_NK = torch.einsum("ij,nijk->nk", pairs_22, self._scores_N22K) - centred_KD.square().sum(1) / 2
        columns = {
            "nc1": (pairs_22 * self._within_22).sum() / num_samples / between,
            "nc1_pinv": pinv_trace(scatter_KK.unsqueeze(0), root_KD.unsqueeze(0))[0],
            "pfc2": distance_to_simplex((centred_KD @ centred_KD.mT).unsqueeze(0))[0],
            "ncc_accuracy": (scores_NK.argmax(1) == self._labels_N).double().mean(),
        }
        return {name: value.item() for name, value in columns.items()}

    @property
    def means_cosine(self) -> float | None:
        """The cosine of both ends' centred class means, as vectors of K D numbers; null where those of one are one point."""
        first_KD, last_KD = self._centred_2KD
        return _quotient((first_KD * last_KD).sum(), first_KD.norm() * last_KD.norm())


def geodesic(features_first: Features, features_last: Features, labels: Features) -> Geodesic:
    """Return the geodesic between two layers' features [N, D] with labels [N], 0 to K - 1 in any order.

    Raises:
        ValueError: the arrays do not fit together.
    """
    first, last = torch.as_tensor(features_first), torch.as_tensor(features_last)
    labels_N = torch.as_tensor(labels).long()
    if first.ndim != 2 or len(labels_N) != len(first):
        raise ValueError(
            f"features have shape {tuple(first.shape)} and labels {tuple(labels_N.shape)}; give [N, D] and [N]"
        )
    order, counts_K = _by_class(labels_N)
    return Geodesic(first[order], last[order], counts_K)


def _by_class(labels_N: Tensor) -> tuple[Tensor, Tensor]:
    counts_K = torch.bincount(labels_N)
    if (counts_K == 0).any():
        raise ValueError(f"class {int(counts_K.argmin())} has no samples; number classes 0 to K - 1 without gaps")
    return torch.argsort(labels_N, stable=True), counts_K


def line_distances(first_ND: Tensor, last_ND: Tensor, h_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Return of each sample its distance from the line through its own two ends over their distance, and its place on it.

    A place is t of the nearest point (1-t) h(0) + t h(1). Samples that do not move have neither: NaN.
    """
    way_ND, gone_ND = (last_ND - first_ND).double(), (h_ND - first_ND).double()
    squared_N = way_ND.square().sum(1)
    place_N = (gone_ND * way_ND).sum(1) / squared_N
    off_N = (gone_ND - place_N.unsqueeze(1) * way_ND).norm(dim=1) / squared_N.sqrt()
    return torch.where(squared_N > 0, off_N, torch.nan), torch.where(squared_N > 0, place_N, torch.nan)


def transport_cost(last_ND: Tensor, h_ND: Tensor) -> float | None:
    """Return the cost of moving each sample to its own end: the mean of ||h(1) - h||^2 over that of ||h(1) - centre||^2.

    Null where all end in one point.
    """
    last_ND = last_ND.double()
    return _quotient((last_ND - h_ND).square().sum(), (last_ND - last_ND.mean(0)).square().sum())


def _quotient(above: Tensor, below: Tensor) -> float | None:
    return (above / below).item() if below > 0 else None


def effective_depth(accuracies: Sequence[float | None], layers: Sequence[int], epsilon: float) -> int | None:
    """Return the first layer from which nearest-mean accuracy stays at 1 - epsilon or above; null where it does not end so."""
    first = None
    for layer, accuracy in zip(layers, accuracies, strict=True):
        if accuracy is None or accuracy < 1 - epsilon:
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
    """Add to the rows of the layers of a path what the line between its ends says of them.

    A row has its layer, relative_position, nc1, pfc2 and ncc_accuracy; `layers` gives their features [N, D] once more, one
    layer at a time.
    """
    for row, h_ND in zip(rows, layers, strict=True):
        place = row["relative_position"]
        predicted = dict.fromkeys(PREDICTED) if place is None else line.at(place)
        row |= {f"{name}_geodesic": value for name, value in predicted.items()}
        off_N, place_N = (values[~values.isnan()] for values in line_distances(*ends, h_ND))
        row |= {
            "line_distance": off_N.mean().item() if len(off_N) else None,
            "line_distance_spread": off_N.std(correction=0).item() if len(off_N) else None,
            "line_position": place_N.mean().item() if len(place_N) else None,
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
    """Measure layers of one width, and what the geodesic between the first and the last of them predicts of each.

    `layers` is called twice and gives the layers' features [N, D], which are read one at a time beside the first and the
    last; labels [N] are 0 to K - 1 in any order. A row a layer: relative_position, nc1, nc1_pinv, pfc2 and ncc_accuracy, the
    same with `_geodesic` behind their names as predicted at that position, line_distance (mean over samples of the distance
    from the line between a sample's ends, over their distance), line_distance_spread, line_position, transport_cost; in the
    last row also nc1_rise, pfc2_rise, ncc_fall, monotone, nc1_left, means_cosine and effective_depth, the first
    layer from which ncc_accuracy stays at 1 - epsilon.
    """
    order, counts_K = _by_class(torch.as_tensor(labels).long())

    def read() -> Iterable[Tensor]:
        return (torch.as_tensor(np.asarray(layer))[order] for layer in layers())

    rows: list[dict[str, Any]] = []
    steps: list[float] = []
    first = last = None
    for number, h_ND in enumerate(read()):
        collapse = class_collapse(h_ND.unsqueeze(0), counts_K, class_means(h_ND.double().unsqueeze(0), counts_K))
        rows.append({"layer": number, **{name: value.item() for name, value in collapse.items()}})
        if last is not None:
            steps.append(step_length(last, h_ND).item())
        first, last = h_ND if first is None else first, h_ND
    if first is None or last is None:
        raise ValueError("there are no layers; give one or more")
    for row, place in zip(rows, relative_positions(steps), strict=True):
        row["relative_position"] = place
    add_geodesic(rows, Geodesic(first, last, counts_K), (first, last), read(), epsilon)
    return rows
