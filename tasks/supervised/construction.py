"""What the infimum of P1's objective looks like when embedding and biases cost nothing: networks whose blocks weigh nothing.

With W_l = 0 a block adds its bias to every feature alike. W_0 sends the samples to the two ends of an axis, one class against
the rest, with what parts the rest at a far smaller scale. A bias cancels the rest's end; the next LayerNorm brings what is
left up to full size, at no cost, and splits off the next class. Further biases shift the clusters until they are a simplex.
As the scales part, NC1 goes to 0 and the objective to the unconstrained model's optimum, which bounds it from below: an
infimum that is approached at finite depth. At the limit itself LayerNorm would read zero.

Shapes: N samples, I inputs, K classes, D = width, M = K - 1 axes of the simplex, C clusters that have parted, S shifts.
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, problem (7); the construction is
no part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares, linprog

RESTARTS = 20
"""Random starts of the search for shifts."""
MISFIT = 1e-20
"""Squared distance of the clusters' Gram matrix from the simplex's below which shifts are taken."""


def zero_block_network(
    x_NI: np.ndarray,
    labels_N: np.ndarray,
    *,
    width: int,
    shifts: Sequence[int],
    separation: float,
    row_norm: float,
    linear_layers: int = 1,
) -> dict[str, np.ndarray]:
    """Return the parameters of a post-LN residual network all of whose W_l are 0, by name; its LayerNorm has eps 0.

    shifts: how many blocks shift the clusters after each of the K - 1 splits; the depth is K - 1 + sum(shifts).
    separation: a scale below 1; the smaller, the nearer to the infimum and to where float64 ends.
    row_norm: of each row of W_L. linear_layers: 1 for L-RN1, 2 for L-RN2.

    Raises:
        ValueError: a class cannot be parted from those after it by a hyperplane, or no such shifts give a simplex.
    """
    num_axes = len(shifts)
    shift_SM, axis_DM = simplex_shifts(shifts), _axes(width, num_axes)
    scaled_DM = axis_DM * _scales(separation, num_axes)
    with_ones_NI = np.column_stack([x_NI, np.ones(len(x_NI))])
    embedding_DI = scaled_DM @ _separators(with_ones_NI, labels_N, num_axes)
    parameters = {"W_0": embedding_DI[:, :-1], "b_0": embedding_DI[:, -1]}
    for block, added_M in enumerate(_biases(shifts, shift_SM), start=1):
        added_D = np.sqrt(width) * (axis_DM @ added_M)
        if linear_layers == 1:
            parameters |= {f"W_{block}": np.zeros((width, width)), f"b_{block}": _through_relu(added_D)}
        else:
            parameters |= {f"W_{block},{number}": np.zeros((width, width)) for number in (1, 2)}
            parameters |= {f"b_{block},1": np.zeros(width), f"b_{block},2": added_D}
    return parameters | _last_layer(shifts, shift_SM, row_norm * axis_DM)


def tiny_attention_transformer(
    features_NI: np.ndarray,
    labels_N: np.ndarray,
    *,
    width: int,
    shifts: Sequence[int],
    separation: float,
    row_norm: float,
    attention: float,
) -> dict[str, np.ndarray]:
    """Return what makes a post-LN L-T11 do the same, by name, but W_e and W_p: one weight, of the size `attention`, is not 0.

    features_NI: what attention with W_QK = 0 gives the last position in block 1, before W_VO: the mean over positions of
    LN(W_e z + W_p), a constant among its directions. W_p is to be so large at the last position that what is embedded there
    is the same for all samples, along the axis after the simplex's (`last_position`). Block 1 cancels it; the depth is
    K - 1 + sum(shifts).

    Raises:
        ValueError: as `zero_block_network`.
    """
    num_axes = len(shifts)
    shift_SM, axis_DM = simplex_shifts(shifts), _axes(width, num_axes)
    scaled_DM = axis_DM * (attention * _scales(separation, num_axes))
    values_DI = scaled_DM @ _separators(features_NI, labels_N, num_axes)
    added = [-last_position(width, num_axes)]
    added += [np.sqrt(width) * (axis_DM @ added_M) for added_M in _biases(shifts, shift_SM)]
    parameters: dict[str, np.ndarray] = {}
    for block, added_D in enumerate(added, start=1):
        for name in ("QK", "VO"):
            parameters[f"W_{block},{name}"] = np.zeros((width, width))
        parameters |= {f"W_{block}": np.zeros((width, width)), f"b_{block}": _through_relu(added_D)}
    return parameters | {"W_1,VO": values_DI} | _last_layer(shifts, shift_SM, row_norm * axis_DM)


def last_position(width: int, num_axes: int) -> np.ndarray:
    """Return what `tiny_attention_transformer` wants at the last position, [D]: as long as a LayerNorm's output."""
    return np.asarray(np.sqrt(width) * _axes(width, num_axes + 1)[:, -1])


def _last_layer(shifts: Sequence[int], shift_SM: np.ndarray, row_DM: np.ndarray) -> dict[str, np.ndarray]:
    *_, end_KM = cluster_path(shifts, shift_SM)
    return {"W_L": end_KM @ row_DM.T, "b_L": np.zeros(len(end_KM))}


def _through_relu(added_D: np.ndarray) -> np.ndarray:
    """Return a bias that a ReLU passes: LayerNorm takes away what all coordinates share."""
    return np.asarray(added_D - added_D.min())


def cluster_path(shifts: Sequence[int], shift_SM: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the clusters [C, M] behind each LayerNorm, in the limit of scales far apart; the last row is to be split."""
    points_CM = np.zeros((2, len(shifts)))
    points_CM[:, 0] = 1, -1
    yield points_CM
    remaining = iter(shift_SM)
    for axis, num_shifts in enumerate(shifts):
        for _ in range(num_shifts):
            points_CM = _unit(points_CM + _on_first(next(remaining), axis + 1))
            yield points_CM
        if axis + 1 < len(shifts):
            ends_2M = np.zeros((2, len(shifts)))
            ends_2M[:, axis + 1] = 1, -1
            points_CM = np.concatenate([_unit(points_CM[:-1] - points_CM[-1]), ends_2M])
            yield points_CM


def simplex_shifts(shifts: Sequence[int]) -> np.ndarray:
    """Return shifts [S, M] after which the clusters are a simplex.

    Raises:
        ValueError: none were found.
    """
    num_axes = len(shifts)
    wanted_KK = (np.eye(num_axes + 1) - 1 / (num_axes + 1)) * (num_axes + 1) / num_axes

    def misfit(flat: np.ndarray) -> np.ndarray:
        *_, points_KM = cluster_path(shifts, flat.reshape(-1, num_axes))
        return (points_KM @ points_KM.T - wanted_KK).ravel()

    generator = np.random.default_rng(0)
    for _ in range(RESTARTS):
        start = 0.3 * generator.standard_normal(sum(shifts) * num_axes)
        found = least_squares(misfit, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
        if 2 * found.cost < MISFIT:
            return np.asarray(found.x).reshape(-1, num_axes)
    raise ValueError(
        f"no shifts were found that make {num_axes + 1} clusters a simplex with shifts {list(shifts)}; give more"
    )


def _biases(shifts: Sequence[int], shift_SM: np.ndarray) -> Iterator[np.ndarray]:
    """Yield what each block adds, [M]: a shift, or minus the cluster that the next LayerNorm splits."""
    path, remaining = cluster_path(shifts, shift_SM), iter(shift_SM)
    points_CM = next(path)
    for axis, num_shifts in enumerate(shifts):
        for _ in range(num_shifts):
            yield _on_first(next(remaining), axis + 1)
            points_CM = next(path)
        if axis + 1 < len(shifts):
            yield -points_CM[-1]
            points_CM = next(path)


def _separators(x_NI: np.ndarray, labels_N: np.ndarray, num_axes: int) -> np.ndarray:
    """Return hyperplanes through 0, [M, I], that part class k from those after it, the largest distance of a sample 1."""
    weights = []
    for k in range(num_axes):
        signed = np.concatenate([-x_NI[labels_N == k], x_NI[labels_N > k]])
        constraints = np.column_stack([signed, np.ones(len(signed))])  # the margin is at most that of each sample
        bounds = [(-1, 1)] * x_NI.shape[1] + [(0, None)]
        cost = np.append(np.zeros(x_NI.shape[1]), -1.0)
        found = linprog(cost, A_ub=constraints, b_ub=np.zeros(len(signed)), bounds=bounds)
        if not found.x[-1] > 1e-6:
            raise ValueError(f"no hyperplane parts class {k} from those after it; give fewer samples, or fewer classes")
        weight_I = found.x[:-1]
        weights.append(weight_I / np.abs(x_NI @ weight_I).max())
    return np.array(weights)


def _scales(separation: float, num_axes: int) -> np.ndarray:
    """Return the scale of each axis, [M]: what a split leaves in its own plane is of second order in the next one's."""
    ratios = [separation ** (2 ** (num_axes - 1 - axis)) for axis in range(1, num_axes)]
    return np.cumprod([1.0, *ratios])


def _axes(width: int, num_axes: int) -> np.ndarray:
    """Return orthonormal columns [D, M] that sum to 0 each, as what LayerNorm gives does (Helmert's)."""
    axis_DM = np.zeros((width, num_axes))
    for column in range(num_axes):
        axis_DM[: column + 1, column] = 1
        axis_DM[column + 1, column] = -(column + 1)
    return axis_DM / np.linalg.norm(axis_DM, axis=0)


def _unit(points_CM: np.ndarray) -> np.ndarray:
    return points_CM / np.linalg.norm(points_CM, axis=-1, keepdims=True)


def _on_first(shift_M: np.ndarray, num_axes: int) -> np.ndarray:
    """Return the shift along the axes that have been split, 0 along the others: it would hide what they hold."""
    return np.where(np.arange(len(shift_M)) < num_axes, shift_M, 0.0)


def as_batch(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters with a trial axis of one in front, as networks take them."""
    return {name: value[None] for name, value in parameters.items()}
