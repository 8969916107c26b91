"""Operations of torch written as simpler ones, while a step is traced.

What remains is: matrix products, elementwise operations, sums and maxima, views, copies (`cat`), embeddings, and the two
operations defined here: `patches`, the windows that a convolution reads, and its adjoint `unpatched`.

Shapes: B samples, C channels, H and W height and width of a map, K windows of a map, N rows, D columns.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.overrides import TorchFunctionMode

from depthrate.tasks.native.codegen.errors import CannotGenerateError

aten = torch.ops.aten

MAX_GROUPS = 32
"""Maximum number of a convolution's groups that are computed one by one."""


# ---- Windows of maps with channels last ----

_library = torch.library.Library("depthrate", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("patches(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor")  # type: ignore[no-untyped-call]
_library.define("unpatched(Tensor x, int[] size, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor")  # type: ignore[no-untyped-call]


class Window(NamedTuple):
    """Kernel size, stride, padding and dilation of a convolution along two axes."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    def counts(self, size: Sequence[int]) -> list[int]:
        """Return the number of windows along each axis of a map."""
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, *self, strict=True)]

    @property
    def is_one_pixel(self) -> bool:
        """Whether windows are the map's pixels, each once."""
        return all(k == 1 for k in self.kernel) and all(s == 1 for s in self.stride) and not any(self.padding)

    def taps(self) -> Iterable[tuple[int, int]]:
        """Return the positions of a window, row by row."""
        return itertools.product(range(self.kernel[0]), range(self.kernel[1]))

    def cut(self, axis: int, tap: int, size: int) -> tuple[slice, slice]:
        """Return the windows whose position `tap` is inside the map, and the map's entries there, along an axis."""
        count = self.counts([size] * 2)[axis]
        stride, begin = self.stride[axis], tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(begin // stride)) if begin < 0 else 0
        last = min(count - 1, (size - 1 - begin) // stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        start = begin + first * stride
        return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


def _patches(x_BHWC: Tensor, *window: Sequence[int]) -> Tensor:
    w, (b, height, width, channels) = Window(*window), x_BHWC.shape
    rows, columns = w.counts((height, width))
    out = x_BHWC.new_zeros(b, rows, columns, prod(w.kernel), channels)
    for tap, (i, j) in enumerate(w.taps()):
        (to_h, of_h), (to_w, of_w) = w.cut(0, i, height), w.cut(1, j, width)
        out[:, to_h, to_w, tap] = x_BHWC[:, of_h, of_w]
    return out.flatten(3)


def _unpatched(x_BHWK: Tensor, size: Sequence[int], *window: Sequence[int]) -> Tensor:
    w, (height, width) = Window(*window), size
    parts = x_BHWK.unflatten(3, (prod(w.kernel), -1))  # type: ignore[no-untyped-call]
    out = x_BHWK.new_zeros(x_BHWK.shape[0], height, width, parts.shape[-1])
    for tap, (i, j) in enumerate(w.taps()):
        (to_h, of_h), (to_w, of_w) = w.cut(0, i, height), w.cut(1, j, width)
        out[:, of_h, of_w] += parts[:, to_h, to_w, tap]
    return out


for _name, _function in (("patches", _patches), ("unpatched", _unpatched)):
    for _key in ("CPU", "Meta"):
        _library.impl(_name, _function, _key)  # type: ignore[no-untyped-call]

patches, unpatched = torch.ops.depthrate.patches.default, torch.ops.depthrate.unpatched.default


# ---- Convolutions as products of windows ----


def _check_convolution(weight: Tensor, transposed: bool, groups: int) -> None:
    if transposed or weight.ndim not in (3, 4):
        raise CannotGenerateError("a transposed convolution, or one of volumes, cannot be generated")
    if groups > MAX_GROUPS and weight.shape[1] != 1:
        raise CannotGenerateError(f"a convolution of {groups} groups cannot be generated")


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Sequence[int],
    groups: int,
) -> Tensor:
    _check_convolution(weight, transposed, groups)
    if weight.ndim == 3:  # of series: maps of height 1
        y = _convolution(
            x.unsqueeze(2), weight.unsqueeze(2), bias, [1, *stride], [0, *padding], [1, *dilation], False, [], groups
        )
        return y.squeeze(2)
    window, x_BHWC = Window(weight.shape[2:], stride, padding, dilation), x.permute(0, 2, 3, 1)
    if weight.shape[1] == 1 and groups == weight.shape[0] == x.shape[1]:
        y_BHWC = _by_channel(x_BHWC, weight, window)
    else:
        parts = zip(x_BHWC.chunk(groups, 3), weight.chunk(groups, 0), strict=True)
        products = [_windows(x, window) @ _as_matrix(w) for x, w in parts]
        y_BHWC = products[0] if groups == 1 else torch.cat(products, 3)
    return (y_BHWC if bias is None else y_BHWC + bias).permute(0, 3, 1, 2)


def _windows(x_BHWC: Tensor, window: Window) -> Tensor:
    return x_BHWC if window.is_one_pixel else patches(x_BHWC, *window)


def _as_matrix(weight: Tensor) -> Tensor:
    """Return a weight [C_out, C_in, kh, kw] as the matrix [kh kw C_in, C_out] that multiplies windows."""
    return weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0])


def _by_channel(x_BHWC: Tensor, weight: Tensor, window: Window) -> Tensor:
    windows = _windows(x_BHWC, window).unflatten(3, (prod(window.kernel), -1))  # type: ignore[no-untyped-call]
    weights = weight.flatten(1).t()
    total = windows[..., 0, :] * weights[0]
    for tap in range(1, prod(window.kernel)):
        total = total + windows[..., tap, :] * weights[tap]
    return total


def _convolution_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    _check_convolution(weight, transposed, groups)
    if weight.ndim == 3:
        arguments: Any = (bias_sizes, [1, *stride], [0, *padding], [1, *dilation], False, [], groups, mask)
        dx, dw, db = _convolution_backward(g.unsqueeze(2), x.unsqueeze(2), weight.unsqueeze(2), *arguments)
        return (None if dx is None else dx.squeeze(2)), (None if dw is None else dw.squeeze(2)), db
    window = Window(weight.shape[2:], stride, padding, dilation)
    x_BHWC, g_BHWC = x.permute(0, 2, 3, 1), g.permute(0, 2, 3, 1)
    size, out_channels, taps = x_BHWC.shape[1:3], weight.shape[0], prod(window.kernel)
    if weight.shape[1] == 1 and groups == out_channels == x.shape[1]:
        windows, weights = _windows(x_BHWC, window).unflatten(3, (taps, -1)), weight.flatten(1).t()  # type: ignore[no-untyped-call]
        dw = torch.stack([(windows[..., tap, :] * g_BHWC).sum((0, 1, 2)) for tap in range(taps)]).t()
        d_windows = [torch.cat([g_BHWC * weights[tap] for tap in range(taps)], 3)] if mask[0] else []
        d_weights = [dw.reshape(weight.shape)]
    else:
        parts = list(zip(x_BHWC.chunk(groups, 3), g_BHWC.chunk(groups, 3), weight.chunk(groups, 0), strict=True))
        d_weights = [
            (g.reshape(-1, g.shape[3]).t() @ _windows(x, window).reshape(-1, taps * x.shape[3]))
            .view(w.shape[0], *w.shape[2:], w.shape[1])
            .permute(0, 3, 1, 2)
            for x, g, w in parts
        ]
        d_windows = [g @ _as_matrix(w).t() for _, g, w in parts] if mask[0] else []
    back = [d if window.is_one_pixel else unpatched(d, size, *window) for d in d_windows]
    dx_BHWC = None if not back else back[0] if len(back) == 1 else torch.cat(back, 3)
    return (
        None if dx_BHWC is None else dx_BHWC.permute(0, 3, 1, 2),
        d_weights[0] if len(d_weights) == 1 else torch.cat(d_weights, 0),
        g_BHWC.sum((0, 1, 2)) if mask[2] else None,
    )


# ---- Norms, softmax and pointwise functions ----


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes, n = list(range(-len(shape), 0)), prod(shape)
    mean = x.sum(axes, keepdim=True) / n
    centred = x - mean
    scale = torch.rsqrt((centred * centred).sum(axes, keepdim=True) / n + eps)
    normal = centred * scale
    if weight is not None:
        normal = normal * weight
    return (normal if bias is None else normal + bias), mean, scale


def _var_mean(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    axes = list(range(x.ndim)) if dim is None else dim
    n = prod(x.shape[axis] for axis in axes)
    mean = x.sum(axes, keepdim=True) / n
    centred = x - mean
    variance = (centred * centred).sum(axes, keepdim=True) / (n - correction)
    return (variance, mean) if keepdim else (variance.squeeze(axes), mean.squeeze(axes))


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    e = torch.exp(x - torch.amax(x, dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    centred = x - torch.amax(x, dim, keepdim=True)
    return centred - torch.log(torch.exp(centred).sum(dim, keepdim=True))


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return x * ((torch.tanh((x + x * x * x * 0.044715) * 0.7978845608028654) + 1) * 0.5)
    return x * ((torch.erf(x * 0.7071067811865476) + 1) * 0.5)


def _clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    if low is not None:
        x = torch.where(x <= low, low, x)
    return x if high is None else torch.where(x >= high, high, x)


def _power(x: Tensor, exponent: float) -> Tensor:
    if exponent in (0.5, -0.5):
        root = torch.sqrt(x)
        return root if exponent > 0 else 1 / root
    if exponent not in (-3, -2, -1, 1, 2, 3, 4, 5, 6):
        raise CannotGenerateError(f"the power {exponent} cannot be generated")
    y = x
    for _ in range(int(abs(exponent)) - 1):
        y = y * x
    return y if exponent > 0 else 1 / y


def _vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if order != 2:
        raise CannotGenerateError(f"the vector norm of order {order} cannot be generated")
    return torch.sqrt((x * x).sum(list(range(x.ndim)) if dim is None else dim, keepdim))


def _silu_backward(g: Tensor, x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def _split(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [aten.slice.Tensor(x, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _select_backward(g: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    start = index % sizes[dim]
    return aten.slice_backward.default(g.unsqueeze(dim), sizes, dim, start, start + 1, 1)


def _constant_pad(x: Tensor, padding: Sequence[int], value: float = 0.0) -> Tensor:
    if value:
        raise CannotGenerateError("padding by other numbers than 0 cannot be generated")
    for axis, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True), start=1):
        dim = x.ndim - axis
        x = x.narrow(dim, max(0, -before), x.shape[dim] + min(0, before) + min(0, after))
        if before > 0 or after > 0:
            start, end = max(0, before), max(0, before) + x.shape[dim]
            sizes = [*x.shape[:dim], end + max(0, after), *x.shape[dim + 1 :]]
            x = aten.slice_backward.default(x, sizes, dim, start, end, 1)
    return x


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        raise CannotGenerateError("roll over all axes cannot be generated")
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if start := (size - shift) % size:
            x = torch.cat([aten.slice.Tensor(x, dim, start, size), aten.slice.Tensor(x, dim, 0, start)], dim)
    return x


def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    if not x.is_floating_point():
        return NotImplemented
    for dim in dims:
        x = torch.cat(torch.split(x, 1, dim)[::-1], dim)
    return x


def _cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if not x.is_floating_point() or x.ndim == 0:
        return NotImplemented
    sums = torch.ones(x.shape[dim], x.shape[dim], dtype=x.dtype).triu()
    return (x.transpose(dim, -1) @ sums).transpose(dim, -1)


def _embedding_backward(g: Tensor, indices: Tensor, rows: int, padding_index: int, scale_by_frequency: bool) -> Tensor:
    """Return the gradient of a table without its row of padding. What remains has a separate kernel."""
    if padding_index < 0:
        return NotImplemented
    table = aten.embedding_dense_backward.default(g, indices, rows, -1, scale_by_frequency)
    return table * (torch.arange(rows) != padding_index).unsqueeze(1)


def _indexed_axes(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], list[int], Tensor] | None:
    """Return the axes that are indexed, the others, and numbers of rows once the indexed axes are one.

    None: the rows of a matrix, or other indices.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    parts = [index for index in indices if index is not None]
    is_run = axes == list(range(axes[0], axes[-1] + 1))
    has_masks = any(index.dtype == torch.bool for index in parts)
    if not x.is_floating_point() or has_masks or not is_run or (x.ndim == 2 and axes == [0]):
        return None
    rows = torch.zeros((), dtype=torch.int64)
    for axis, index in zip(axes, parts, strict=True):
        rows = rows * x.shape[axis] + torch.where(index < 0, index + x.shape[axis], index)
    return axes, [axis for axis in range(x.ndim) if axis not in axes], rows


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if (indexed := _indexed_axes(x, indices)) is None:
        return NotImplemented
    (axes, others, rows), first = indexed, indexed[0][0]
    matrix = x.permute(*axes, *others).reshape(prod(x.shape[axis] for axis in axes), -1)
    found = aten.index.Tensor(matrix, [rows.flatten()]).view(*rows.shape, *(x.shape[axis] for axis in others))
    return found.movedim(list(range(rows.ndim)), list(range(first, first + rows.ndim)))


def _index_put(x: Tensor, indices: Sequence[Tensor | None], g: Tensor, accumulate: bool = False) -> Tensor:
    if not accumulate or (indexed := _indexed_axes(x, indices)) is None:
        return NotImplemented
    (axes, others, rows), first = indexed, indexed[0][0]
    g = g.movedim(list(range(first, first + rows.ndim)), list(range(rows.ndim))).reshape(rows.numel(), -1)
    matrix = x.new_zeros(prod(x.shape[axis] for axis in axes), g.shape[1])
    added = aten.index_put.default(matrix, [rows.flatten()], g, True)
    added = added.view(*(x.shape[axis] for axis in (*axes, *others)))
    return x + added.movedim(list(range(len(axes))), axes)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    axes = dim if dim else list(range(x.ndim))
    return x.sum(axes, keepdim) / prod(x.shape[axis] for axis in axes)


_OWN: Mapping[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: lambda x, *args, **kwargs: _var_mean(x, *args, **kwargs)[0],
    aten.std.correction: lambda x, *args, **kwargs: torch.sqrt(_var_mean(x, *args, **kwargs)[0]),
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten.gelu.default: _gelu,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.hardtanh.default: _clamp,
    aten.pow.Tensor_Scalar: _power,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.silu.default: lambda x: x * torch.sigmoid(x),
    aten.silu_backward.default: _silu_backward,
    aten.split_with_sizes.default: _split,
    aten.select_backward.default: _select_backward,
    aten.constant_pad_nd.default: _constant_pad,
    aten.roll.default: _roll,
    aten.flip.default: _flip,
    aten.cumsum.default: _cumsum,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.softshrink_backward.default: lambda g, x, size: torch.where(x.abs() <= size, 0.0, g),
    aten.hardshrink_backward.default: lambda g, x, size: torch.where(x.abs() <= size, 0.0, g),
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.square.default: lambda x: x * x,
    aten.sgn.default: lambda x: torch.sign(x),
}
_TORCHS = (
    *(aten.elu, aten.elu_backward, aten.leaky_relu, aten.leaky_relu_backward, aten.hardtanh_backward),
    *(aten.softplus, aten.softplus_backward),
    *(aten.hardswish, aten.hardswish_backward, aten.hardsigmoid, aten.hardsigmoid_backward, aten.mish),
    *(aten.mish_backward, aten.log_sigmoid_forward, aten.log_sigmoid_backward, aten.softshrink, aten.prelu),
    *(aten.celu, aten.glu, aten.glu_backward, aten.addcmul, aten.addcdiv, aten.baddbmm, aten.rms_norm),
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the rules by which a trace replaces operations."""
    table = {**core_aten_decompositions(), **get_decompositions(_TORCHS), **_OWN}
    table.pop(aten.slice_backward.default, None)  # a kernel of its own
    return table


# ---- Functions replaced before autograd sees them ----


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise CannotGenerateError("dropout cannot be generated")
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None:
        masks = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if masks else scores + attn_mask
    return torch.softmax(scores, -1) @ value


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _pool(x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Window:
    if ceil_mode or x.ndim != 4:
        raise CannotGenerateError("pooling with ceil_mode, or of other inputs than maps, cannot be generated")
    return Window(_pair(kernel_size), _pair(stride if stride else kernel_size), _pair(padding), _pair(dilation))


def _taps_of(x: Tensor, window: Window, outside: float) -> Iterator[Tensor]:
    """Yield each window's entry at one position of it, for all positions, [B, H, W, C], and a number outside the map."""
    x_BHWC = x.permute(0, 2, 3, 1)
    if window.stride == window.kernel and window.dilation == (1, 1) and not any(window.padding):
        (rows, columns), (height, width) = window.counts(x.shape[2:]), window.kernel
        cut = x_BHWC[:, : rows * height, : columns * width]  # into windows without a copy
        blocks = cut.unflatten(1, (rows, height)).unflatten(3, (columns, width))  # type: ignore[no-untyped-call]
        for i, j in window.taps():
            yield blocks[:, :, i, :, j]
        return
    (above, left), (rows, columns) = window.padding, window.counts(x.shape[2:])
    if any(window.padding):
        sides = (0, 0, left, left, above, above)
        x_BHWC = F.pad(x_BHWC, sides)
        if outside:
            x_BHWC = torch.where(F.pad(x.new_ones(1, *x.shape[2:], 1), sides) > 0, x_BHWC, outside)
    for i, j in window.taps():
        starts = (i * window.dilation[0], j * window.dilation[1])
        steps = zip(starts, (rows, columns), window.stride, strict=True)
        of_h, of_w = (slice(start, start + (count - 1) * step + 1, step) for start, count, step in steps)
        yield x_BHWC[:, of_h, of_w]


def _max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    best: Tensor | None = None
    for tap in _taps_of(input, _pool(input, kernel_size, stride, padding, dilation, ceil_mode), float("-inf")):
        best = tap if best is None else torch.where(tap > best, tap, best)  # the first largest one gets the gradient
    assert best is not None
    return best.permute(0, 3, 1, 2)


def _avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    window = _pool(input, kernel_size, stride, padding, 1, ceil_mode)
    count: Any = divisor_override or prod(window.kernel)
    if any(window.padding) and not count_include_pad and not divisor_override:
        count = sum(_taps_of(input.new_ones(1, 1, *input.shape[2:]), window, 0.0))
    total = sum(_taps_of(input, window, 0.0)) / count
    assert isinstance(total, Tensor)
    return total.permute(0, 3, 1, 2)


def _adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    given = list(input.shape[-2:])
    sizes = [have if wanted is None else wanted for have, wanted in zip(given, _pair(output_size), strict=True)]
    if sizes == [1, 1]:
        return input.mean((-2, -1), keepdim=True)
    if any(have % wanted for have, wanted in zip(given, sizes, strict=True)):
        raise CannotGenerateError(f"adaptive pooling of {given} to {sizes} cannot be generated")
    return _avg_pool2d(input, [have // wanted for have, wanted in zip(given, sizes, strict=True)])


def _adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    return _adaptive_avg_pool2d(input.unsqueeze(-2), (1, _pair(output_size)[0])).squeeze(-2)


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    groups = torch.unflatten(input, 1, (num_groups, -1))
    variance, mean = torch.var_mean(groups, list(range(2, groups.ndim)), correction=0, keepdim=True)
    normal = ((groups - mean) * torch.rsqrt(variance + eps)).flatten(1, 2)
    channels = (-1, *[1] * (input.ndim - 2))
    normal = normal if weight is None else normal * weight.view(channels)
    return normal if bias is None else normal + bias.view(channels)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if running_mean is not None or not use_input_stats:
        raise CannotGenerateError("an instance norm with running statistics cannot be generated")
    return _group_norm(input, input.shape[1], weight, bias, eps)


def _interpolate(input: Tensor, size: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Interpolate as torch does, and leave maps that have the requested size as they are."""
    if size is not None and input.ndim == 4 and tuple(input.shape[2:]) == _pair(size):
        return input
    return _body_of(F.interpolate)(input, size, *args, **kwargs)


def _max(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return maxima along an axis, of which the first largest number gets the gradient, or any other maximum as torch does."""
    with torch._C.DisableTorchFunction():
        result = torch.max(input, *args, **kwargs)
    if isinstance(result, Tensor) or not input.is_floating_point():
        return result
    dim: int = kwargs["dim"] if "dim" in kwargs else args[0]
    first, *others = input.unbind(dim)
    for other in others:
        first = torch.where(other > first, other, first)
    keeps = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    return torch.return_types.max((first.unsqueeze(dim) if keeps else first, result.indices))


def _register_hook(*_: Any) -> None:
    raise CannotGenerateError("hooks on tensors cannot be generated")


_REPLACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    F.max_pool2d: _max_pool2d,
    F.avg_pool2d: _avg_pool2d,
    F.adaptive_avg_pool2d: _adaptive_avg_pool2d,
    F.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.interpolate: _interpolate,
    torch.max: _max,
    Tensor.max: _max,
    Tensor.register_hook: _register_hook,
}


@cache
def _body_of(function: FunctionType) -> FunctionType:
    """Return a function of `torch.nn.functional` that calls others by the current mode, but is not passed to it itself."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    namespace = {**function.__globals__, **dict.fromkeys(names, lambda *_: False)}
    body = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


class _Replacing(TorchFunctionMode):
    """Replaces functions that this thread calls, also from other functions of `torch.nn.functional`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        replacement = _REPLACED.get(func)
        if replacement is None and isinstance(func, FunctionType) and func.__globals__ is vars(F):
            replacement = _body_of(func)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        with self:  # torch leaves the mode for this call
            return replacement(*args, **(kwargs or {}))


@contextmanager
def replaced_functions() -> Iterator[None]:
    """Replace functions whose gradients have no simple form by differentiable ones, and layers of oneDNN by torch's own."""
    # oneDNN has one operation per recurrent layer
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), _Replacing():
        yield
