"""Collapse of many unbalanced classes, like next tokens, from moments in two passes over batches of features.

Computed in float64. Memory grows with classes x width, not with samples.
Shapes: M samples of a batch, D feature dimensions, K classes, R rows of a block of class pairs.
Source: Wu & Papyan, Linguistic Collapse: Neural Collapse in (Large) Language Models (NeurIPS 2024), here WP.
"""

from functools import cached_property

import torch
from torch import Tensor

from depthrate.tasks.measures.neural_collapse import PINV_TOLERANCE, undefined_if_equal, zero_unless_finite

PAIRS_PER_BLOCK = 2**20
"""Maximum number of class pairs compared at a time."""


class ClassMoments:
    """Moments of one layer: `add` every batch, `revisit` every batch with the same classes, then `result`.

    All classes, and all pairs of them, have the same weight, whatever their sizes: mu_G = (1/K) sum mu_k and
    Sigma_B = (1/K) sum (mu_k - mu_G)(mu_k - mu_G)^T. Sigma_W is the mean over samples, as in `class_collapse`.
    """

    def __init__(self, counts_K: Tensor, width: int):
        self._counts_K = counts_K.double()
        shapes = (len(counts_K), width), (len(counts_K),), (width, width)
        self._sums_KD, self._within_K, self._scatter_DD = map(self._counts_K.new_zeros, shapes)
        self._nearest_own, self._nearest_predicted = 0, 0

    def add(self, h_MD: Tensor, classes_M: Tensor) -> None:
        """Add a batch in the first pass, which computes the means."""
        self._sums_KD.index_add_(0, classes_M, h_MD.double())

    def revisit(self, h_MD: Tensor, classes_M: Tensor, predicted_M: Tensor) -> None:
        """Add a batch in the second pass, with the network's prediction for each sample."""
        h_MD, (means_KD, centred_KD) = h_MD.double(), self._means
        deviations_MD = h_MD - means_KD.index_select(0, classes_M)
        self._within_K.index_add_(0, classes_M, deviations_MD.square().sum(1))
        self._scatter_DD += deviations_MD.mT @ deviations_MD
        scores_MK = (h_MD - means_KD.mean(0)) @ centred_KD.mT - centred_KD.square().sum(1) / 2
        nearest_M = scores_MK.argmax(1)
        self._nearest_own += int((nearest_M == classes_M).sum())
        self._nearest_predicted += int((nearest_M == predicted_M).sum())

    @cached_property
    def _means(self) -> tuple[Tensor, Tensor]:
        """Class means [K, D], uncentred and centred."""
        means_KD = self._sums_KD / self._counts_K.unsqueeze(1)
        return means_KD, means_KD - means_KD.mean(0)

    def result(self, weight_KD: Tensor | None = None) -> dict[str, float]:
        """Compute the metrics, NaN or infinite where undefined.

        Args:
            weight_KD: Last layer's weight, one row per class in the order of the counts.

        Returns:
            Metric name -> value. With c_k = mu_k - mu_G and u_k = c_k / ||c_k||:
            nc1 = tr Sigma_W / tr Sigma_B. nc1_pinv = tr(Sigma_W pinv(Sigma_B)) / K.
            cdnv = mean over pairs of (s_k + s_l) / (2 ||mu_k - mu_l||^2), s_k the mean of ||h - mu_k||^2 over the class
            (Galanti, Gyorgy, Hutter 2022; NC1 in WP).
            nc2_norms = standard deviation of log ||c_k|| (equinormness in WP).
            nc2_angles = standard deviation of u_k . u_l over pairs (equiangularity).
            gnc2 = standard deviation of log(1 / ||u_k - u_l||) over pairs (hyperspherical uniformity).
            nc3_means = 1 - mean cos(w_k, c_k) (self-duality) and unc3 = standard deviation of these cosines (uniform
            duality), w_k the weight's rows.
            ncc_accuracy = share of samples whose nearest class mean is their class's.
            nc4 = share of samples whose nearest class mean is the predicted class's (agreement).
        """
        means_KD, centred_KD = self._means
        num_samples, num_classes = float(self._counts_K.sum()), len(centred_KD)
        within = self._within_K.sum() / num_samples
        between_DD = centred_KD.mT @ centred_KD / num_classes
        norms_K1 = centred_KD.norm(dim=1, keepdim=True)
        metrics = {
            "nc1": within / between_DD.trace(),
            "nc1_pinv": _pinv_trace(self._scatter_DD / num_samples, between_DD, num_classes),
            **self._measure_pairs(centred_KD / norms_K1),
            "nc2_norms": norms_K1.log().std(correction=0),
        }
        if weight_KD is not None:
            unit_KD = torch.nn.functional.normalize(weight_KD.double(), dim=1)
            # 1 - cos is half the squared distance of unit vectors, which does not cancel near collapse
            distance_K = (unit_KD - centred_KD / norms_K1).square().sum(1) / 2
            metrics |= {"nc3_means": distance_K.mean(), "unc3": distance_K.std(correction=0)}
        for name, count in (("ncc_accuracy", self._nearest_own), ("nc4", self._nearest_predicted)):
            share_1 = within.new_tensor([count / num_samples])
            metrics[name] = undefined_if_equal(share_1, means_KD.unsqueeze(0), within.unsqueeze(0))[0]
        return {name: value.item() for name, value in metrics.items()}

    def _measure_pairs(self, unit_KD: Tensor) -> dict[str, Tensor]:
        """Compute the metrics over pairs of classes, block by block."""
        _, centred_KD = self._means
        variances_K = self._within_K / self._counts_K
        sums = {name: _Spread() for name in ("cdnv", "nc2_angles", "gnc2")}
        block_rows = max(1, PAIRS_PER_BLOCK // len(unit_KD))
        for start in range(0, len(unit_KD), block_rows):
            rows = slice(start, start + block_rows)
            distances_RK, unit_distances_RK = (
                torch.cdist(points_KD[rows], points_KD, compute_mode="donot_use_mm_for_euclid_dist")
                for points_KD in (centred_KD, unit_KD)
            )
            is_pair_RK = torch.ones_like(distances_RK, dtype=torch.bool)
            is_pair_RK[torch.arange(len(distances_RK)), torch.arange(len(distances_RK)) + start] = False
            sums["cdnv"].add(((variances_K[rows, None] + variances_K) / (2 * distances_RK.square()))[is_pair_RK])
            sums["nc2_angles"].add((-unit_distances_RK.square() / 2)[is_pair_RK])  # cos - 1, without cancellation
            sums["gnc2"].add(-unit_distances_RK.log()[is_pair_RK])
        return {"cdnv": sums["cdnv"].mean, "nc2_angles": sums["nc2_angles"].deviation, "gnc2": sums["gnc2"].deviation}


class _Spread:
    """Running mean and standard deviation."""

    def __init__(self) -> None:
        self._count = 0
        self.mean = self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        count, mean = self._count + len(values), values.mean()
        shift = mean - self.mean
        self._squares = self._squares + (values - mean).square().sum() + shift**2 * self._count * len(values) / count
        self.mean, self._count = self.mean + shift * len(values) / count, count

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of all values so far."""
        return (self._squares / self._count).sqrt()


def _pinv_trace(within_DD: Tensor, between_DD: Tensor, num_classes: int) -> Tensor:
    """Compute tr(Sigma_W pinv(Sigma_B)) / K from D x D matrices, which are the smaller ones if K > D.

    Zero eigenvalues are decided as in `pinv_trace`.
    """
    values_D, vectors_DD = torch.linalg.eigh(zero_unless_finite(between_DD)[0])  # a zero matrix gives NaN
    is_nonzero_D = values_D > PINV_TOLERANCE * values_D[-1]
    is_nonzero_D[: max(0, len(values_D) - (num_classes - 1))] = False  # the centred means span at most K - 1 dimensions
    basis_DR = vectors_DD[:, is_nonzero_D]
    trace = ((within_DD @ basis_DR) * basis_DR).sum(0) @ (1 / values_D[is_nonzero_D]) / num_classes
    return trace if is_nonzero_D.any() else torch.tensor(torch.nan, dtype=torch.float64)
