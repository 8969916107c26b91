"""Networks with zero block weights that approach the infimum of P1's objective if embedding and biases are not regularised.

With W_l = 0, a block adds its bias to every feature. W_0 maps the samples to the two ends of an axis, one class against the
rest, and separates the rest at a far smaller scale. A bias cancels the end of the rest. The next LayerNorm scales the remainder
up to full size, at no cost, and splits off the next class. Further biases shift the clusters until they form a simplex. As the
scales separate, NC1 tends to 0 and the objective to the optimum of the unconstrained model, which bounds it from below. The
infimum is thus approached at finite depth. In the limit itself, the input of LayerNorm would be zero.

Shapes: N samples, I inputs, K classes, D = width, M = K - 1 axes of the simplex, C separated clusters, S shifts.
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, problem (7). The construction is
not from the paper.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares, linprog

RESTARTS = 20
"""Random starts of the search for shifts."""
MISFIT = 1e-20
"""Maximal squared distance between the Gram matrices of the clusters and of the simplex, for shifts to be accepted."""


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
    """Construct the parameters of a post-LN residual network with all W_l = 0, by name, for LayerNorm with eps 0.

    Args:
        x_NI: Samples, shape [N, I].
        labels_N: Class of each sample.
        width: Feature dimension D.
        shifts: Number of blocks that shift the clusters after each of the K - 1 splits. The depth is K - 1 + sum(shifts).
        separation: Scale below 1. Smaller values are nearer to the infimum and to the limits of float64.
        row_norm: Norm of each row of W_L.
        linear_layers: 1 for L-RN1, 2 for L-RN2.
    Raises:
        ValueError: No hyperplane separates a class from those after it, or no such shifts give a simplex.
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
    """Construct the same for a post-LN L-T11, without W_e and W_p: one weight, of size `attention`, is not 0.

    Args:
        features_NI: Output of attention with W_QK = 0 at the last position of block 1, before W_VO: the mean over positions
            of LN(W_e z + W_p), with a constant among its directions. W_p must be so large at the last position that its
            embedding is the same for all samples, along the axis after the simplex's (`last_position`). Block 1 cancels it.
        labels_N: Class of each sample.
        width: Feature dimension D.
        shifts: As in `zero_block_network`. The depth is K - 1 + sum(shifts).
        separation: As in `zero_block_network`.
        row_norm: Norm of each row of W_L.
        attention: Scale of the weight W_VO of block 1.
    Raises:
        ValueError: As in `zero_block_network`.
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
    """Return the embedding [D] needed at the last position, with the norm of LayerNorm's output."""
    return np.asarray(np.sqrt(width) * _axes(width, num_axes + 1)[:, -1])


def _last_layer(shifts: Sequence[int], shift_SM: np.ndarray, row_DM: np.ndarray) -> dict[str, np.ndarray]:
    *_, end_KM = cluster_path(shifts, shift_SM)
    return {"W_L": end_KM @ row_DM.T, "b_L": np.zeros(len(end_KM))}


def _through_relu(added_D: np.ndarray) -> np.ndarray:
    """Shift a bias so that ReLU passes it. LayerNorm removes the common offset of all coordinates."""
    return np.asarray(added_D - added_D.min())


def cluster_path(shifts: Sequence[int], shift_SM: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the clusters [C, M] after each LayerNorm, in the limit of separate scales. The last row is split next."""
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
    """Find shifts [S, M] after which the clusters form a simplex.

    Raises:
        ValueError: No shifts were found.
    """
    num_axes = len(shifts)
    target_KK = (np.eye(num_axes + 1) - 1 / (num_axes + 1)) * (num_axes + 1) / num_axes

    def misfit(flat: np.ndarray) -> np.ndarray:
        *_, points_KM = cluster_path(shifts, flat.reshape(-1, num_axes))
        return (points_KM @ points_KM.T - target_KK).ravel()

    generator = np.random.default_rng(0)
    for _ in range(RESTARTS):
        start = 0.3 * generator.standard_normal(sum(shifts) * num_axes)
        solution = least_squares(misfit, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
        if 2 * solution.cost < MISFIT:
            return np.asarray(solution.x).reshape(-1, num_axes)
    raise ValueError(
        f"no shifts were found that make {num_axes + 1} clusters a simplex with shifts {list(shifts)}. Use more shifts."
    )


def _biases(shifts: Sequence[int], shift_SM: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the vector [M] that each block adds: a shift, or minus the cluster that the next LayerNorm splits."""
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
    """Find hyperplanes through 0, [M, I], that separate class k from later classes, scaled to a largest distance of 1."""
    weights = []
    for k in range(num_axes):
        signed = np.concatenate([-x_NI[labels_N == k], x_NI[labels_N > k]])
        constraints = np.column_stack([signed, np.ones(len(signed))])  # bounds the margin by that of each sample
        bounds = [(-1, 1)] * x_NI.shape[1] + [(0, None)]
        cost = np.append(np.zeros(x_NI.shape[1]), -1.0)
        solution = linprog(cost, A_ub=constraints, b_ub=np.zeros(len(signed)), bounds=bounds)
        if not solution.x[-1] > 1e-6:
            raise ValueError(f"no hyperplane separates class {k} from later ones. Use fewer samples or fewer classes.")
        weight_I = solution.x[:-1]
        weights.append(weight_I / np.abs(x_NI @ weight_I).max())
    return np.array(weights)


def _scales(separation: float, num_axes: int) -> np.ndarray:
    """Return the scale of each axis, [M]. A split leaves an error in its plane of second order in the next scale."""
    ratios = [separation ** (2 ** (num_axes - 1 - axis)) for axis in range(1, num_axes)]
    return np.cumprod([1.0, *ratios])


def _axes(width: int, num_axes: int) -> np.ndarray:
    """Return orthonormal columns [D, M] (Helmert's), each with sum 0 like the output of LayerNorm."""
    axis_DM = np.zeros((width, num_axes))
    for column in range(num_axes):
        axis_DM[: column + 1, column] = 1
        axis_DM[column + 1, column] = -(column + 1)
    return axis_DM / np.linalg.norm(axis_DM, axis=0)


def _unit(points_CM: np.ndarray) -> np.ndarray:
    return points_CM / np.linalg.norm(points_CM, axis=-1, keepdims=True)


def _on_first(shift_M: np.ndarray, num_axes: int) -> np.ndarray:
    """Return the shift along the axes already split. Along the others it would hide their content, so it is 0."""
    return np.where(np.arange(len(shift_M)) < num_axes, shift_M, 0.0)


def as_batch(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters with a leading trial axis of length 1, as networks expect them."""
    return {name: value[None] for name, value in parameters.items()}
