"""Streaming metrics of features that do not fit into memory: two passes over batches.

The first pass computes class means and the scatter around them in float64, merging partial sums with Chan's formula. The second
pass needs the means and computes nc1_pinv and ncc_accuracy. Memory: K x D numbers and one batch.

Shapes: T = 1, N samples of a batch, B classes in a batch, D feature dimensions, K classes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.measures.alignment import feature_alignment, weight_alignment
from depthrate.tasks.measures.labelled import FeaturesError, as_features, as_labels, as_weight
from depthrate.tasks.measures.measure import as_columns
from depthrate.tasks.measures.neural_collapse import (
    class_means,
    distance_to_simplex,
    pinv_trace,
    spectrum,
    undefined_if_equal,
)


class StreamingMetrics:
    """Computes the metrics of `measure` in batches: `update` with every batch, `revisit` with every batch again, `result`.

    Without the second pass, nc1_pinv and ncc_accuracy are None. Memory grows with classes x width, not with samples.
    """

    def __init__(self, weight: Any = None, *, rank_tol: float = 0.01):
        """Start without samples.

        Args:
            weight: Last layer's weight, shape [K, D]. With it, labels must be its row numbers 0 to K - 1.
            rank_tol: Share of the largest singular value above which one counts in rank.

        Raises:
            FeaturesError: The weight is not a matrix.
        """
        self._weight_KD = as_weight(weight, None)
        self._rank_tol = rank_tol
        self._classes: dict[Any, int] = {}
        self._counts_K = np.zeros(0)
        self._means_KD = torch.zeros(0, 0, dtype=torch.float64)
        self._precision = torch.float64
        self._within = 0.0
        self._distance = 0.0
        self._revisited, self._right = 0, 0
        self._scatter_KK: Tensor | None = None
        self._root_KD = self._centred_KD = self._global_mean_D = self._means_KD

    def update(self, features: Any, labels: Any) -> None:
        """Add a batch in the first pass.

        Args:
            features: Shape [N, ...], numpy or torch. Axes after the first are flattened to D.
            labels: Class of each sample, shape [N], of any type.

        Raises:
            FeaturesError: Shapes differ within the batch or from earlier batches, a number is not finite, or `revisit` was
                called before.
        """
        if self._revisited:
            raise FeaturesError(
                "update after revisit: the second pass needs the means of all batches. Create a new StreamingMetrics."
            )
        self._scatter_KK = None  # result() may have centred the means of the earlier batches
        h_ND, labels_N = self._batch(features, labels)
        classes, index_N = np.unique(labels_N, return_inverse=True)
        rows_B = self._rows(classes, h_ND)
        order, counts_B = torch.from_numpy(np.argsort(index_N, kind="stable")), np.bincount(index_N)
        sorted_1ND = h_ND[order.to(h_ND.device)].unsqueeze(0)
        means_BD = class_means(sorted_1ND, torch.from_numpy(counts_B))[0]
        class_N = torch.from_numpy(np.repeat(np.arange(len(classes)), counts_B)).to(h_ND.device)
        self._within += (sorted_1ND[0] - means_BD[class_N]).square().sum().item()
        previous_B, total_B = self._counts_K[rows_B], self._counts_K[rows_B] + counts_B
        shift_BD = means_BD.cpu() - self._means_KD[rows_B]
        self._within += (shift_BD.square().sum(1) * torch.from_numpy(previous_B * counts_B / total_B)).sum().item()
        self._means_KD[rows_B] += shift_BD * torch.from_numpy(counts_B / total_B).unsqueeze(1)
        self._counts_K[rows_B] = total_B
        if self._weight_KD is not None:
            self._compare(sorted_1ND, np.asarray(classes), counts_B)

    def revisit(self, features: Any, labels: Any) -> None:
        """Add a batch in the second pass, after all batches were passed to `update`.

        Args:
            features: As in `update`.
            labels: As in `update`.

        Raises:
            FeaturesError: As `update`, or a class did not occur in the first pass.
        """
        h_ND, labels_N = self._batch(features, labels)
        if self._scatter_KK is None:
            self._start_revisit()
        assert self._scatter_KK is not None
        unknown = [label for label in np.unique(labels_N).tolist() if label not in self._classes]
        if unknown:
            raise FeaturesError(f"class {unknown[0]!r} occurs in the second pass, but not in the first")
        rows_N = torch.tensor([self._classes[label] for label in labels_N.tolist()])
        h_ND = h_ND.cpu()
        projected_NK = (h_ND - self._means_KD[rows_N]) @ self._root_KD.mT
        self._scatter_KK += projected_NK.mT @ projected_NK
        scores_NK = (h_ND - self._global_mean_D) @ self._centred_KD.mT - self._centred_KD.square().sum(1) / 2
        self._right += int((scores_NK.argmax(1) == rows_N).sum())
        self._revisited += len(h_ND)

    def result(self) -> dict[str, Any]:
        """Compute the metrics of all batches.

        Returns:
            Metric name -> value, as `measure` returns them.

        Raises:
            FeaturesError: There are fewer than two classes, a row of the weight has no samples, or the passes differ in length.
        """
        total = int(self._counts_K.sum())
        if len(self._classes) < 2:
            raise FeaturesError(f"batches have {len(self._classes)} classes, collapse needs at least 2")
        if self._weight_KD is not None and len(self._classes) < len(self._weight_KD):
            raise FeaturesError(
                f"batches have {len(self._classes)} classes, expected {len(self._weight_KD)}, one per row of the weight"
            )
        as_labels([*self._classes])
        if self._revisited not in (0, total):
            raise FeaturesError(
                f"the second pass has {self._revisited} samples, the first {total}. Pass the same batches to revisit."
            )
        if self._scatter_KK is None:
            self._start_revisit()
        assert self._scatter_KK is not None
        order = torch.tensor([self._classes[label] for label in sorted(self._classes)])
        means_1KD, centred_1KD = self._means_KD[order].unsqueeze(0), self._centred_KD[order].unsqueeze(0)
        between = self._root_KD.square().sum()
        metrics = {
            "nc1": torch.tensor([self._within / total], dtype=torch.float64) / between,
            "pfc2": distance_to_simplex(centred_1KD @ centred_1KD.mT),
            **spectrum(means_1KD, self._rank_tol, self._precision),
        }
        if self._revisited:
            metrics["nc1_pinv"] = pinv_trace(self._scatter_KK.unsqueeze(0) / total, self._root_KD.unsqueeze(0))
            within_1 = torch.tensor([self._within / total], dtype=torch.float64)
            metrics["ncc_accuracy"] = undefined_if_equal(
                within_1.new_tensor([self._right / total]), means_1KD, within_1
            )
        if self._weight_KD is not None:
            metrics |= weight_alignment(self._weight_KD.cpu().unsqueeze(0))
            metrics["nc3"] = torch.tensor([self._distance / total], dtype=torch.float64)
        missing = {} if self._revisited else {"nc1_pinv": None, "ncc_accuracy": None}
        return {**as_columns(metrics), **missing}

    def _batch(self, features: Any, labels: Any) -> tuple[Tensor, np.ndarray]:
        h_ND = as_features(features)
        self._precision = h_ND.dtype
        labels_N = as_labels(labels, len(h_ND))
        as_labels([*self._classes][:1] + labels_N[:1].tolist())  # True == 1, and text has no order among numbers
        return h_ND.double(), labels_N

    def _rows(self, classes: np.ndarray, h_ND: Tensor) -> np.ndarray:
        """Return the classes' rows in the accumulators, adding rows for new classes."""
        width = h_ND.shape[1]
        if self._classes and width != self._means_KD.shape[1]:
            raise FeaturesError(
                f"features have width {width}, expected {self._means_KD.shape[1]} as in earlier batches"
            )
        as_weight(self._weight_KD, width)
        num_previous = len(self._classes)
        for label in classes.tolist():
            self._classes.setdefault(label, len(self._classes))
        if num_added := len(self._classes) - num_previous:
            self._counts_K = np.concatenate([self._counts_K, np.zeros(num_added)])
            previous = self._means_KD if num_previous else self._means_KD.new_zeros(0, width)
            self._means_KD = torch.cat([previous, previous.new_zeros(num_added, width)])
        return np.array([self._classes[label] for label in classes.tolist()])

    def _compare(self, sorted_1ND: Tensor, classes: np.ndarray, counts_B: np.ndarray) -> None:
        assert self._weight_KD is not None
        if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= len(self._weight_KD):
            raise FeaturesError(
                f"labels are {classes.dtype}, such as {classes[-1]!r}. With a weight, labels must be its row numbers, 0 to "
                f"{len(self._weight_KD) - 1}."
            )
        weight_1BD = self._weight_KD[torch.from_numpy(classes)].to(sorted_1ND.device).unsqueeze(0)
        alignment = feature_alignment(sorted_1ND, torch.from_numpy(counts_B), weight_1BD)
        self._distance += alignment["nc3"].item() * sorted_1ND.shape[1]

    def _start_revisit(self) -> None:
        self._global_mean_D = self._means_KD.mean(0)
        self._centred_KD = self._means_KD - self._global_mean_D
        self._root_KD = self._centred_KD / len(self._means_KD) ** 0.5
        self._scatter_KK = self._root_KD.new_zeros(len(self._root_KD), len(self._root_KD))
