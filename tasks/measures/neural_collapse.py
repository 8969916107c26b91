"""Class means: within-class variability, nearest-mean accuracy, distance from a simplex, and singular values.

Computed in float64, in two passes, without a D x D matrix. `class_moments` reads the features, on their device. It returns
small tensors, from which the metrics of many layers follow in one call on the CPU.
Shapes: T trials or layers, N samples sorted by class, D feature dimensions, K classes.
Sources: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Definition 3.4;
P2 Neural Collapse versus Low-Rank Bias, section 6; P3 Progressive Feedforward Collapse of ResNet Training, (7)-(9).
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def zero_unless_finite(matrix_AB: Tensor) -> tuple[Tensor, Tensor]:
    """Replace matrices that contain a non-finite number by zeros. Also return which are finite, [..., 1, 1]."""
    is_finite = matrix_AB.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.where(is_finite, matrix_AB, 0.0), is_finite


PINV_TOLERANCE = 1e-12
"""Default share of Sigma_B's largest eigenvalue below which nc1_pinv treats an eigenvalue as zero. At most K - 1 are used."""


def class_means(h_TND: Tensor, class_counts_K: Tensor) -> Tensor:
    """Compute the class means [T, K, D] of features sorted by class. The counts are on the CPU."""
    counts = class_counts_K.tolist()
    if len(set(counts)) == 1:  # one call gives the same numbers
        return h_TND.view(h_TND.shape[0], len(counts), -1, h_TND.shape[2]).mean(2)
    return torch.stack([segment.mean(1) for segment in torch.split(h_TND, counts, dim=1)], dim=1)


def sample_labels(class_counts_K: Tensor, device: torch.device) -> Tensor:
    """Return the class of each sample [N] on a device, from counts on the CPU, without waiting for the device."""
    return torch.repeat_interleave(class_counts_K).to(device, non_blocking=True)


def by_class(x_TNA: Tensor, class_counts_K: Tensor, of_classes_TKA: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast values of classes against values of samples sorted by class.

    Returns:
        Views [T, K, n, A] and [T, K, 1, A] if all classes have n samples, which avoids a large temporary tensor. Otherwise the
        samples as they are and the values of their classes, [T, N, A] both.
    """
    counts = class_counts_K.tolist()
    if len(set(counts)) == 1:
        return x_TNA.view(x_TNA.shape[0], len(counts), -1, x_TNA.shape[2]), of_classes_TKA.unsqueeze(2)
    # indexing with [] is several times slower than index_select
    return x_TNA, of_classes_TKA.index_select(1, sample_labels(class_counts_K, x_TNA.device))


def class_moments(h_TND: Tensor, class_counts_K: Tensor) -> dict[str, Tensor]:
    """Reduce features sorted by class to the numbers that their metrics depend on.

    All classes have the same weight, whatever their sizes: mu_G is the mean of the class means and
    Sigma_B = (1/K) sum (mu_k - mu_G)(mu_k - mu_G)^T. Sigma_W is the mean over samples.

    Args:
        h_TND: Features sorted by class.
        class_counts_K: Number of samples per class, on the CPU.

    Returns:
        Name -> values in float64:
        means = mu_k, [T, K, D]. within = tr Sigma_W, [T].
        scatter = A Sigma_W A^T with Sigma_B = A^T A, [T, K, K].
        ncc_accuracy = share of samples whose nearest class mean is their class's (P3 (9)), [T]. NaN if all means are equal.
    """
    num_samples, num_classes = h_TND.shape[1], len(class_counts_K)
    deviations_TND = h_TND.to(torch.float64, copy=True)
    means_TKD = class_means(deviations_TND, class_counts_K)
    centred_TKD = means_TKD - means_TKD.mean(1, keepdim=True)
    samples, of_classes = by_class(deviations_TND, class_counts_K, means_TKD)
    samples -= of_classes
    # everything but the trace needs only the deviations' components along the centred means
    along_TNK = deviations_TND @ centred_TKD.mT
    within_T = torch.linalg.vector_norm(deviations_TND, dim=(1, 2)).square() / num_samples
    return {
        "means": means_TKD,
        "within": within_T,
        "scatter": along_TNK.mT @ along_TNK / (num_samples * num_classes),
        "ncc_accuracy": undefined_if_equal(
            _ncc_accuracy(along_TNK, centred_TKD @ centred_TKD.mT, class_counts_K), means_TKD, within_T
        ),
    }


def class_collapse(moments: Mapping[str, Tensor], *, pinv_tolerance: float = PINV_TOLERANCE) -> dict[str, Tensor]:
    """Measure how close features are to their class means, and the means to a simplex.

    Args:
        moments: Moments of the features, as `class_moments` returns them. Others among them are returned as they are.
        pinv_tolerance: Share of Sigma_B's largest eigenvalue below which an eigenvalue is zero in nc1_pinv.

    Returns:
        Metric name -> values [T], NaN or infinite where undefined.
        nc1 = tr Sigma_W / tr Sigma_B (P1 Def. 3.4, P3 (7)).
        nc1_pinv = tr(Sigma_W pinv(Sigma_B)) / K (P2 section 6; Papyan et al. 2020).
        pfc2 = || Ht^T Ht / ||Ht^T Ht|| - E / sqrt(K-1) ||, Ht the centred means and E = I - (1/K) 1 1^T (P3 (8)).
        ncc_accuracy = as in the moments.
    """
    columns = dict(moments)
    means_TKD, within_T, scatter_TKK = (columns.pop(name) for name in ("means", "within", "scatter"))
    centred_TKD, num_classes = means_TKD - means_TKD.mean(1, keepdim=True), means_TKD.shape[1]
    return columns | {
        "nc1": within_T / (centred_TKD.square().sum((1, 2)) / num_classes),
        "nc1_pinv": pinv_trace(scatter_TKK, centred_TKD / num_classes**0.5, pinv_tolerance),
        "pfc2": distance_to_simplex(centred_TKD @ centred_TKD.mT),
    }


def pinv_trace(scatter_TKK: Tensor, root_TKD: Tensor, tolerance: float = PINV_TOLERANCE) -> Tensor:
    """Compute tr(Sigma_W pinv(Sigma_B)) / K [T] without a D x D matrix.

    With G = A A^T it equals tr(G^+ (A Sigma_W A^T) G^+) / K.

    Args:
        scatter_TKK: A Sigma_W A^T.
        root_TKD: A, with Sigma_B = A^T A.
        tolerance: Share of G's largest eigenvalue below which an eigenvalue is zero.
    """
    num_classes = root_TKD.shape[1]
    gram_TKK, _ = zero_unless_finite((root_TKD @ root_TKD.mT).cpu())  # a zero matrix gives NaN below
    eigenvalues_TK, vectors_TKK = (part.to(root_TKD.device) for part in torch.linalg.eigh(gram_TKK))
    is_nonzero_TK = eigenvalues_TK > tolerance * eigenvalues_TK[:, -1:]
    is_nonzero_TK[:, 0] = False  # the centred means span at most K - 1 dimensions
    inverse_TK = torch.where(is_nonzero_TK, 1 / eigenvalues_TK, 0.0)
    scaled_TKK = vectors_TKK * inverse_TK.unsqueeze(1)
    result_T = (scaled_TKK.mT @ scatter_TKK @ scaled_TKK).diagonal(dim1=-2, dim2=-1).sum(-1) / num_classes
    return torch.where(eigenvalues_TK[:, -1] > 0, result_T, torch.nan)


def _ncc_accuracy(along_TNK: Tensor, gram_TKK: Tensor, class_counts_K: Tensor) -> Tensor:
    """Compute the share [T] of samples nearest to the mean of their class.

    The nearest mean maximises (h - mu_G) . c - ||c||^2 / 2 over the centred means c. Since h - mu_G is the class's c plus a
    deviation, no large terms cancel.
    """
    class_scores_TKK = gram_TKK - gram_TKK.diagonal(dim1=1, dim2=2).unsqueeze(1) / 2
    along, of_classes = by_class(along_TNK, class_counts_K, class_scores_TKK)
    classes_TK1 = torch.arange(gram_TKK.shape[1], device=gram_TKK.device).expand(len(gram_TKK), -1).unsqueeze(2)
    _, own = by_class(along_TNK, class_counts_K, classes_TK1)
    # argmax takes twice as long
    return ((along + of_classes).max(-1, keepdim=True).indices == own).double().flatten(1).mean(1)


def undefined_if_equal(shares_T: Tensor, means_TKD: Tensor, within_T: Tensor) -> Tensor:
    """Replace shares of samples nearest to a class mean [T] by NaN if all class means are equal, up to rounding.

    Rounding is at most 32 units in the last place of the root mean square of the features. within_T: tr Sigma_W.
    """
    squares_TK = (means_TKD - means_TKD.mean(1, keepdim=True)).square().sum(2)
    scale_T = within_T + means_TKD.square().sum(2).amax(1)
    is_equal_T = squares_TK.amax(1) <= (32 * torch.finfo(torch.float64).eps) ** 2 * scale_T
    return torch.where(is_equal_T & scale_T.isfinite(), torch.nan, shares_T)


def distance_to_simplex(gram_TKK: Tensor) -> Tensor:
    """Compute pfc2 [T]: the distance of the centred class means' Gram matrix from a simplex's, both scaled to norm 1."""
    num_classes = gram_TKK.shape[-1]
    simplex_KK = torch.eye(num_classes, dtype=gram_TKK.dtype, device=gram_TKK.device) - 1 / num_classes
    unit_TKK = gram_TKK / gram_TKK.norm(dim=(1, 2), keepdim=True)
    return (unit_TKK - simplex_KK / (num_classes - 1) ** 0.5).norm(dim=(1, 2))


def spectrum(means_TKD: Tensor, rank_tol: float, precision: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Measure the spectrum of the uncentred class-mean matrix M (D x K).

    Args:
        means_TKD: Class means, M^T of each trial.
        rank_tol: Share of the largest singular value above which one counts in rank.
        precision: Floating-point type of the features' computation.

    Returns:
        Metric name -> values, NaN or infinite where undefined.
        singular_values: descending, [T, min(D, K)].
        class_gram = M^T M, [T, K, K].
        rank: number of singular values above rank_tol times the largest, [T].
        stable_rank = ||M||_F^2 / ||M||_2^2, [T].
        condition_number: largest over smallest singular value, [T]. It is infinite if the smallest is zero up to rounding,
        i.e. at most the largest times max(D, K) times the machine epsilon of `precision`.
    """
    # for such a small matrix, a decomposition on the GPU costs more than the transfer
    finite_TKD, is_finite_T11 = zero_unless_finite(means_TKD.cpu())
    singular_values = torch.linalg.svdvals(finite_TKD.mT)
    singular_values = torch.where(is_finite_T11.squeeze(2), singular_values, torch.nan).to(means_TKD.device)
    largest_T, smallest_T = singular_values[:, 0], singular_values[:, -1]
    zero_share = max(means_TKD.shape[1:]) * torch.finfo(precision).eps
    smallest_T = torch.where(smallest_T > zero_share * largest_T, smallest_T, 0.0)
    return {
        "rank": (singular_values > rank_tol * largest_T.unsqueeze(1))
        .double()
        .sum(1)
        .where(~largest_T.isnan(), torch.nan),
        "stable_rank": singular_values.square().sum(1) / largest_T.square(),
        "condition_number": largest_T / smallest_T,
        "singular_values": singular_values,
        "class_gram": means_TKD @ means_TKD.mT,
    }
