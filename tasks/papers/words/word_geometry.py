"""Collapse of words to their concepts: norms, directions, angles between concepts, and the type of collapse.

All values are computed in float64. Each distance is relative and is zero for perfect collapse: noise of size eps on a
vector of norm 1 gives about eps.

Shapes: C concepts, S words of a concept, the most frequent first, X vectors of a group, D = width, K classes, L places.
Source: Feature Collapse (Laurent, von Brecht and Bresson 2023), Definitions 1, 2 and 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthrate.tasks.measures.neural_collapse import zero_unless_finite

COLLAPSE_MAX_DISTANCE = 0.2
"""Largest distance, in any condition of a type of collapse, at which a trial counts as collapsed."""


@dataclass(frozen=True)
class Groups:
    """Geometry of vectors grouped by concept."""

    norms: Tensor
    """Norms of all vectors, [N], group after group."""
    centres_CD: Tensor
    """Mean direction of each group, scaled to norm 1, or NaN for an empty group."""
    direction_collapse: float
    """Root mean square distance of the vectors, scaled to norm 1, from their group's mean direction."""
    magnitude_collapse: float
    """Root mean square over groups of (standard deviation / mean) of the norms within a group."""
    equiangularity: float
    """Largest difference of a cosine between two mean directions from -1/(C - 1)."""

    @property
    def norm_spread(self) -> float:
        """Standard deviation over mean of all norms."""
        return _variation(self.norms)


def grouped(groups: Sequence[Tensor]) -> Groups:
    """Measure the geometry of vectors passed as one [X, D] tensor per concept."""
    vectors = [group.double() for group in groups]
    norms = [group.norm(dim=1) for group in vectors]
    units = [group / norm.unsqueeze(1) for group, norm in zip(vectors, norms, strict=True)]
    means = [unit.mean(0) for unit in units]
    centres_CD = torch.stack([mean / mean.norm() for mean in means])
    squares = [(unit - centre).square().sum(1) for unit, centre in zip(units, centres_CD, strict=True)]
    cosines_CC = centres_CD @ centres_CD.T
    pairs = torch.triu_indices(len(groups), len(groups), 1)
    variations = torch.tensor([_variation(norm) for norm in norms])
    return Groups(
        norms=torch.cat(norms),
        centres_CD=centres_CD,
        direction_collapse=torch.cat(squares).mean().sqrt().item(),
        magnitude_collapse=variations.square().mean().sqrt().item(),
        equiangularity=(cosines_CC[pairs[0], pairs[1]] + 1 / (len(groups) - 1)).abs().max().item(),
    )


def words_of(words_VD: Tensor, concepts: int) -> Groups:
    """Measure the words, which are numbered concept after concept."""
    return grouped(list(words_VD.view(concepts, -1, words_VD.shape[1])))


def blocks_of(linear_KLD: Tensor, concepts_KL: Tensor, concepts: int) -> Groups | None:
    """Measure the blocks of the linear layer by the concept at their position. Return None if a concept never occurs."""
    groups = [linear_KLD[concepts_KL == concept] for concept in range(concepts)]
    return grouped(groups) if all(map(len, groups)) else None


def rank_spread(norms: Tensor, concepts: int) -> float:
    """Return the root mean square over frequency ranks of (standard deviation / mean) of the norms of words of one rank."""
    norms_CS = norms.view(concepts, -1)
    deviations_S = norms_CS.std(0, correction=0) / norms_CS.mean(0)
    return deviations_S.square().mean().sqrt().item()


def alignment(words: Groups, blocks: Groups) -> float:
    """Return the largest distance between the mean directions of a concept's words and of its blocks."""
    return (words.centres_CD - blocks.centres_CD).norm(dim=1).max().item()


def scores(words: Groups, blocks: Groups | None, concepts: int, *, layer_norm: bool) -> dict[str, float]:
    """Return the distance from each type of collapse that the network can have: the largest over the type's conditions.

    Type I: words c f_alpha and blocks c' f_alpha with equiangular f. Type II: the same for the words after LayerNorm.
    Type III: words r_b f_alpha, norms that depend on the frequency rank b only.
    """
    if blocks is None:
        return {}
    shared = [
        words.direction_collapse,
        words.equiangularity,
        blocks.direction_collapse,
        blocks.equiangularity,
        blocks.norm_spread,
        alignment(words, blocks),
    ]
    even = _worst([*shared, words.norm_spread])
    if layer_norm:
        return {"collapse_2": even}
    return {"collapse_1": even, "collapse_3": _worst([*shared, rank_spread(words.norms, concepts)])}


def collapse_type(distances: dict[str, float]) -> int:
    """Return the strictest type of collapse that the scores reach: 1, 2, 3, or 0 for none."""
    for name in ("collapse_1", "collapse_2", "collapse_3"):
        if distances.get(name, torch.inf) <= COLLAPSE_MAX_DISTANCE:
            return int(name[-1])
    return 0


def principal_values(vectors_ND: Tensor) -> Tensor:
    """Return the singular values of the centred vectors (their principal components) in descending order."""
    vectors_ND = vectors_ND.double()
    centred_ND, is_finite = zero_unless_finite((vectors_ND - vectors_ND.mean(0)).cpu())
    return torch.where(is_finite[0], torch.linalg.svdvals(centred_ND), torch.nan)


def projection(vectors_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Return the first three principal components of the vectors, [N, 3], padded with zeros if there are fewer dimensions.

    The plane of the first two is rotated so that the mean of label 0 lies on the positive x-axis, and reflected if needed
    so that the mean of label 1 does not lie below it. Figures of different steps and seeds are then comparable.
    """
    centred_ND = vectors_ND.double() - vectors_ND.double().mean(0)
    _, _, basis_DD = torch.linalg.svd(zero_unless_finite(centred_ND.T @ centred_ND)[0])
    shown_NC = centred_ND @ basis_DD[:3].T
    shown_NC = torch.nn.functional.pad(shown_NC, (0, 3 - shown_NC.shape[1]))
    x, y = (shown_NC[labels_N == 0].mean(0))[:2].tolist()
    length = (x * x + y * y) ** 0.5
    if length > 0:
        turn = torch.tensor([[x, -y], [y, x]], dtype=torch.float64) / length
        shown_NC[:, :2] = shown_NC[:, :2] @ turn
    if (shown_NC[labels_N == 1].mean(0))[1] < 0:
        shown_NC[:, 1] *= -1
    return shown_NC


def _variation(norms: Tensor) -> float:
    return (norms.std(correction=0) / norms.mean()).item()


def _worst(distances: Sequence[float]) -> float:
    """Return the largest distance, or NaN if any distance is NaN."""
    return torch.tensor(distances, dtype=torch.float64).max().item()
