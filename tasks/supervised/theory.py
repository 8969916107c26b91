"""Closed forms with which metrics are compared. Plain Python, so that every command can import it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from depthrate.tasks.networks.builtin import Architecture

MIN_WIDTH = 4
"""Minimum width covered by P1's Theorem 4.3."""


class UnconstrainedOptimum(NamedTuple):
    """Optimum of the unconstrained model on the LayerNorm sphere, up to rotations (P1, Lemma 4.2).

    Features of class k are sqrt(width) u_k and row k of W_L is row_norm u_k, with mean-zero unit vectors u_k.
    """

    objective: float
    row_norm: float | None
    """None if W_L is not regularised, since the optimum is then not attained (cross-entropy) or not unique (squared error)."""
    is_simplex: bool
    """Whether the u_k form a simplex. Otherwise they are orthogonal."""


def gufm_optimum(
    loss: str, *, num_classes: int, width: int, weight_decay_last: float, last_bias: bool
) -> UnconstrainedOptimum | None:
    """Return the optimum of the unconstrained model on the LayerNorm sphere, one balanced point per class.

    Features are on the sphere of radius sqrt(width) inside the mean-zero subspace. Only the last layer is regularised in the
    limit. None if the class points do not fit into that subspace, or below width 4.

    Its objective is the limit at infinite depth for blocks of one matrix (Theorem 4.3). For blocks of two matrices, it is a
    limit only if their lambda falls faster than 1 / log L (Theorem 4.6), and otherwise a lower bound.

    Source: Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Lemma 4.2, with
    the factor of the MSE case corrected to (d + lambda K).
    """
    excess, is_simplex = num_classes - 1, loss == "ce" or last_bias
    if width < MIN_WIDTH or (excess if is_simplex else num_classes) > width - 1:
        return None
    if weight_decay_last == 0:
        return UnconstrainedOptimum(0.0, None, is_simplex)
    if loss == "ce":
        w = best_row_norm(num_classes, width, weight_decay_last)
        tail = excess * math.exp(-math.sqrt(width) * num_classes / excess * w)
        return UnconstrainedOptimum(math.log1p(tail) + weight_decay_last * num_classes * w**2 / 2, w, is_simplex)
    rank = excess if last_bias else num_classes
    row_norm = math.sqrt(width) * rank / (num_classes * (width + weight_decay_last * rank))
    if last_bias:
        objective = weight_decay_last * excess**2 / (2 * num_classes * (width + weight_decay_last * excess))
    else:
        objective = weight_decay_last * num_classes / (2 * (width + weight_decay_last * num_classes))
    return UnconstrainedOptimum(objective, row_norm, is_simplex)


def best_row_norm(num_classes: int, width: int, weight_decay_last: float) -> float:
    """Return the norm of W_L's rows at the unconstrained model's optimum with cross-entropy, for a positive decay.

    It minimises log(1 + (K-1) exp(-w sqrt(d) K/(K-1))) + lambda K w^2 / 2 over w >= 0.
    """
    rate = math.sqrt(width) * num_classes / (num_classes - 1)

    def slope(w: float) -> float:
        tail = (num_classes - 1) * math.exp(-min(rate * w, 700.0))
        return -rate * tail / (1 + tail) + weight_decay_last * num_classes * w

    low, high = 0.0, 1.0
    while slope(high) < 0:
        high *= 2
    for _ in range(200):  # the objective is convex in w, so its slope has one root: bisect to the last bit
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low


def construction_cost(num_blocks: int, weight_decay: float, *, matrices: int, total_change: float) -> float:
    """Return the regularisation of hidden layers that reach collapse together, with an equal share for each block.

    The changes of the blocks add up to `total_change`, a norm that depends on the data, not on the depth. A block whose product
    of `matrices` weights has norm s costs at least (lambda/2) matrices s^(2/matrices), by the inequality of means. For one
    matrix per block the total is lambda c^2 / (2 blocks), which vanishes as 1/L. For two it is lambda c, which vanishes only if
    lambda falls with L. Therefore L-RN2 stays flat under a constant lambda and collapses under lambda / L. The order in L
    follows P1's construction (Theorem 4.6). This form, with one constant, is not from the paper.
    """
    share = total_change / num_blocks
    return weight_decay / 2 * num_blocks * matrices * share ** (2 / matrices)


def _architecture(params: Mapping[str, Any]) -> Architecture | None:
    """Return the built-in architecture of a trial, or None."""
    # Imported here, since it imports numpy and every command imports this module.
    from depthrate.tasks.networks.builtin import ARCHITECTURES

    return ARCHITECTURES.get(str(params.get("arch")))


def _block_scale(params: Mapping[str, Any]) -> float:
    """Return the factor of the residual branches of a trial of a built-in architecture.

    Blocks s relu(W x + b) with decay lambda are blocks relu(W' x + b') with decay lambda / s^2, where W' = s W and b' = s b.
    """
    from depthrate.tasks.networks.builtin import NetworkParameters, block_scale  # here: see _architecture

    return 1.0 if _architecture(params) is None else block_scale(NetworkParameters.from_params(params))


def construction_excess(trials: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Return the construction's cost at each trial's depth and decay for a total change of one, which is a common factor.

    None for an architecture without a known construction, and for trials of several architectures.
    """
    architecture = _architecture(trials[0]) if len({params.get("arch") for params in trials}) == 1 else None
    matrices = None if architecture is None else architecture.construction_matrices
    shapes = [(params.get("depth"), params.get("weight_decay"), _block_scale(params)) for params in trials]
    complete = [(L, decay, s) for L, decay, s in shapes if isinstance(L, int) and L > 1 and decay is not None]
    if matrices is None or len(complete) < len(shapes):
        return None
    return [construction_cost(L - 1, decay, matrices=matrices, total_change=1 / s) for L, decay, s in complete]


def reaches_limit(trials: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the objective reaches that of `gufm_optimum` at infinite depth, along these trials' depths and decays.

    Blocks of two matrices reach it only if lambda(L) = o(1 / log L) (P1, Theorem 4.6). The test here is whether lambda log L is
    smaller at the largest depth than at the smallest depth above 1. Branches with a factor s cost 1 / s as much, and 1 / s^2
    with one matrix, where the test is then whether lambda / (s^2 L) is smaller.
    """
    scales = [_block_scale(params) for params in trials]
    has_two = any((network := _architecture(params)) is not None and network.has_two_matrices for params in trials)
    if not has_two and set(scales) <= {1.0}:
        return True
    shapes = [(params.get("depth"), params.get("weight_decay"), s) for params, s in zip(trials, scales, strict=True)]
    costs = sorted(
        (L, decay * math.log(L) / s if has_two else decay / s**2 / L)
        for L, decay, s in shapes
        if isinstance(L, int) and L > 1 and decay is not None
    )
    return len(costs) > 1 and costs[-1][1] < costs[0][1]


def theorem_bound(
    blocks: int, *, num_samples: int, width: int, weight_decay: float, closest: float, weight_decay_biases: float = 0.0
) -> float | None:
    """Return P1's bound on the objective above its limit, for residual blocks of one matrix, or None below two blocks.

    32 pi^2 d lambda N / (L_1 m^2) + 2^7 N d lambda log^2 L_2 / (m^2 L_2), with m (`closest`) the smallest distance between
    normalised samples. The theorem leaves the division of the blocks into L_1 and L_2 open. Here both are half.

    The theorem's biases are free. Those of its construction, (14), have ||b||^2 = a^2 d^2 (1 - m/2)^2 / (d + m^2/4), at most
    d ||W||^2, so that a decay lambda_b of the biases turns lambda into lambda + d lambda_b. This step is not from the paper.
    """
    if blocks < 2 or closest <= 0:
        return None
    half = blocks / 2
    shared = num_samples * width * (weight_decay + width * weight_decay_biases) / closest**2
    return shared * (32 * math.pi**2 / half + 2**7 * math.log(half) ** 2 / half)


def may_idle(params: Mapping[str, Any]) -> bool:
    """Return whether adding a block can leave a trial's network unchanged at no cost.

    False for custom networks, and for scaled branches, whose factor may depend on the depth.
    """
    architecture = _architecture(params)
    return architecture is not None and architecture.may_idle and _block_scale(params) == 1


def objective_at_zero(trials: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the objective of networks with all weights and biases 0, for balanced classes, or None for custom data.

    It is log K for cross-entropy and 1/2 for the squared error.
    """
    from depthrate.tasks.data.published import PUBLISHED  # here: see _architecture

    sets = [PUBLISHED.get(str(params.get("dataset"))) for params in trials]
    return [
        None if dataset is None else 0.5 if params.get("loss") == "mse" else math.log(dataset.num_classes)
        for dataset, params in zip(sets, trials, strict=True)
    ]


def has_equal_classes(trials: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all classes of these trials are known to have equally many samples, as the theorems assume."""
    from depthrate.tasks.data.published import PUBLISHED  # here: see _architecture

    sets = [
        PUBLISHED.get(str(params.get("dataset"))) for params in trials if not (params.get("samples_per_class") or 0) > 0
    ]
    return all(info is not None and info.num_samples == info.num_classes * info.smallest_class for info in sets)


def bound_of_gap(trials: Sequence[Mapping[str, Any]]) -> list[float | None] | None:
    """Return `theorem_bound` at each trial's depth, up to a factor. It also bounds squared distances to collapse.

    Return None for cases that the theorem does not cover (blocks of several matrices, pre-LN, smoothed labels, a regularised
    embedding, unequal classes), and if a quantity in the factor differs between the trials.
    """
    names = (
        "arch",
        "width",
        "weight_decay",
        "weight_decay_biases",
        "dataset",
        "samples_per_class",
        "normalize",
        "norm",
    )
    factors = {tuple(str(params.get(name)) for name in names) for params in trials}
    architecture = _architecture(trials[0]) if len(factors) == 1 else None
    if architecture is None or architecture.construction_matrices != 1 or trials[0].get("norm") == "pre":
        return None
    if any(map(is_other_problem, trials)) or not has_equal_classes(trials):
        return None
    shapes = [(params.get("depth"), _block_scale(params)) for params in trials]
    return [
        theorem_bound(depth - 1, num_samples=1, width=1, weight_decay=1 / s**2, closest=1.0)
        if isinstance(depth, int)
        else None
        for depth, s in shapes
    ]


def is_other_problem(params: Mapping[str, Any]) -> bool:
    """Return whether labels are smoothed or the embedding is regularised, unlike in P1's theorems.

    An untrained embedding is covered: the proof draws W_0 and b_0 at random and leaves them there.
    """
    return bool(params.get("label_smoothing")) or params.get("weight_decay_embedding") is not None


def bound_of_simplex(trials: Sequence[Mapping[str, Any]]) -> list[float | None] | None:
    """Return the bound on nc2a, or None if the optimum's rows are not a simplex (see `bound_of_basis`)."""
    return bound_of_distance(trials) if set(map(_is_simplex, trials)) == {True} else None


def bound_of_basis(trials: Sequence[Mapping[str, Any]]) -> list[float | None] | None:
    """Return the bound on nc2b, or None unless the optimum's rows are orthogonal: only for squared error without bias."""
    return bound_of_distance(trials) if set(map(_is_simplex, trials)) == {False} else None


def _is_simplex(params: Mapping[str, Any]) -> bool:
    """Return whether the unconstrained model's optimum is a simplex (Lemma 4.2): for squared error only with a last bias."""
    from depthrate.tasks.networks.builtin import NetworkParameters, has_last_bias  # here: see _architecture

    trial = NetworkParameters.from_params({"loss": "ce", "last_bias": None, **params})
    return trial.loss == "ce" or has_last_bias(trial)


def bound_of_distance(trials: Sequence[Mapping[str, Any]]) -> list[float | None] | None:
    """Return the square root of `bound_of_gap`, a bound on distances to collapse of order L^-1/2 up to logarithms."""
    squared = bound_of_gap(trials)
    return None if squared is None else [None if value is None else math.sqrt(value) for value in squared]
