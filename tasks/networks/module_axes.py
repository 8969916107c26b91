"""Axes of a layer's output: the axis of the samples, the axes of its features, and the axes of positions, which are averaged.

Two runs, on two and on three samples, show the axis of the samples. The features' axis comes from the operations that made the
tensor: convolutions, normalisations and pooling put features on axis 1, linear maps, LayerNorm, embeddings, attention and
recurrent modules on the last axis. From there it is followed through the other operations of the run.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from depthrate.tasks.networks.module_flow import LinearMap, parse_pairs
from depthrate.tasks.networks.module_layers import HEAD, capture_outputs
from depthrate.tasks.parameters import ParameterError

_FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_FEATURES_FIRST = ("conv", "batch_norm", "group_norm", "pixel_shuffle", "pixel_unshuffle")
"""Parts of the names of operations with features on axis 1."""
_MOVES = ("cat", "stack", "_unsafe_view", "index", "index_select", "gather", "repeat", "flip", "roll", "unfold")
"""Operations, beside views, that move numbers without changing them."""


@dataclass(frozen=True)
class Axes:
    """Axes of a tensor with one entry per sample along `sample`. Without `features`, all others are features."""

    sample: int
    features: tuple[int, ...] | None = None

    def positions(self, ndim: int) -> list[int]:
        """Return the axes that are neither samples nor features."""
        return [i for i in range(ndim) if self.features is not None and i not in (self.sample, *self.features)]


def pooled(feature: Tensor, axes: Axes, maps: str) -> Tensor:
    """Return a feature in measured form, samples first.

    Args:
        feature: Output of a layer.
        axes: Its axes.
        maps: `mean` over positions, `flatten` for all numbers, or `positions` for [N, positions, features].
    """
    positions = axes.positions(feature.ndim)
    if maps == "flatten" or not positions:
        return feature.movedim(axes.sample, 0)
    assert axes.features is not None
    if maps == "positions":
        return feature.permute(axes.sample, *positions, *axes.features)
    return feature.permute(axes.sample, *axes.features, *positions).flatten(1 + len(axes.features)).mean(-1)


def format_axes(axes: Axes, sizes: Sequence[int], maps: str) -> str | None:
    """Format the shape of a layer's output, with N for the samples and averaged axes marked, or None for one row per sample."""
    if len(sizes) <= 2:
        return None
    positions = axes.positions(len(sizes)) if maps == "mean" else []
    marks = ["N" if i == axes.sample else f"{n} averaged" if i in positions else str(n) for i, n in enumerate(sizes)]
    return f"[{', '.join(marks)}]"


def parse_axes(text: str | Mapping[str, str] | None) -> dict[str, str]:
    """Parse the axes given by the user, as in `rnn: TNC, blocks.*: NCL`.

    Raises:
        ParameterError: A layer's axes lack N or C.
    """
    stated = parse_pairs(text)
    for name, letters in stated.items():
        if not letters.isalpha() or letters.count("N") != 1 or "C" not in letters:
            raise ParameterError(
                f"layer_axes of {name!r} is {letters!r}, expected one letter per axis of its output: N for samples, C for "
                "features, and any other for positions, as in TNC."
            )
    return stated


def find_axes(
    run: Callable[[Tensor], Any],
    module: nn.Module,
    places: Mapping[str, str],
    samples_3: Tensor,
    maps: str,
    stated: str | Mapping[str, str] | None,
    head: LinearMap | None,
    *,
    with_head_input: bool,
) -> dict[str, tuple[Axes, tuple[int, ...]]]:
    """Run a module on two and on three samples, and return the axes and sizes of each layer's output by name.

    Raises:
        ParameterError: The axes of a layer are undecidable and not stated, or differ from the stated ones.
    """
    given, shapes = parse_axes(stated), []
    for number in (2, 3):
        with torch.no_grad(), _AxisTrace() as trace, capture_outputs(module, places, head) as watch:
            run(samples_3[:number])
        layers = watch.layers(with_head_input=with_head_input)
        shapes.append({name: tuple(feature.shape) for name, feature in layers.items()})
    if shapes[0].keys() != shapes[1].keys():
        raise ParameterError("the module calls other layers for three samples than for two. Set layers to others.")
    if unknown := [p for p in given if not any(fnmatch.fnmatchcase(_base(name), p) for name in layers)]:
        raise ParameterError(f"layer_axes has {unknown[0]!r}, which is none of the measured layers {', '.join(layers)}")
    found = {}
    for name, feature in layers.items():
        letters = _letters(name, given)
        varying = [head.axis % feature.ndim] if head and name == HEAD else trace.feature_axes(feature)
        found[name] = _axes(name, shapes[0][name], shapes[1][name], varying, letters, maps), shapes[1][name]
    return found


def axes_of_batch(
    feature: Tensor, num_samples: int, name: str, maps: str, stated: str | Mapping[str, str] | None, error: Exception
) -> Axes:
    """Return the axes of a layer of a network that takes only this number of samples, without a run on fewer samples.

    Raises:
        ParameterError: The axes are not stated, and the output is not one row per sample.
    """
    letters, sizes = _letters(name, parse_axes(stated)), list(feature.shape)
    if letters is not None and len(letters) == len(sizes) and sizes[letters.index("N")] == num_samples:
        return Axes(letters.index("N"), tuple(i for i, letter in enumerate(letters) if letter == "C"))
    if sizes[:1] == [num_samples] and (len(sizes) == 2 or maps == "flatten"):
        return Axes(0)
    raise ParameterError(
        f"layer {name} returns {sizes} for {num_samples} samples, and the network fails on two or three samples "
        f"({type(error).__name__}: {error}), so its axes cannot be found. State them, N for samples and C for features, as in "
        f"layer_axes: {{{_base(name)!r}: {'NCHWD'[: len(sizes)]}}}."
    )


def _letters(name: str, stated: Mapping[str, str]) -> str | None:
    return next((text for pattern, text in stated.items() if fnmatch.fnmatchcase(_base(name), pattern)), None)


def _base(name: str) -> str:
    return name.partition(" (call")[0]


def _axes(
    name: str, two: tuple[int, ...], three: tuple[int, ...], varying: Sequence[int], letters: str | None, maps: str
) -> Axes:
    """Return a layer's axes from its shapes for two and three samples, and from the axes along which features differ."""
    growing = [i for i, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
    sample_axes = growing if len(two) == len(three) and len(growing) == 1 else []
    if letters is not None and len(letters) == len(two):
        sample_axes = [letters.index("N")] if letters.index("N") in growing else []
    if not sample_axes or (two[sample_axes[0]], three[sample_axes[0]]) != (2, 3):
        raise ParameterError(
            f"layer {name} returns {list(two)} for two samples and {list(three)} for three, expected one axis with one entry "
            "per sample. Set layers to others, such as the module around it."
        )
    sample = sample_axes[0]
    shown = f"[{', '.join('N' if i == sample else str(n) for i, n in enumerate(three))}]"
    if letters is not None:
        if len(letters) != len(three):
            raise ParameterError(
                f"layer_axes of {name!r} is {letters!r}, expected {len(three)} letters for its shape {shown}"
            )
        return Axes(sample, tuple(i for i, letter in enumerate(letters) if letter == "C"))
    features = [i for i in varying if i != sample]
    if len(three) <= 2 or (maps == "flatten" and len(features) != 1):
        return Axes(sample)
    if len(features) != 1:
        raise ParameterError(
            f"layer {name} returns {shown}, but which of its axes are features and which are positions to average cannot be "
            f"decided. State its axes, N for samples, C for features and other letters for positions, as in layer_axes: "
            f"{{{_base(name)!r}: {'NCHWD'[: len(three)]}}}, or set layers to others."
        )
    return Axes(sample, (features[0],))


class _AxisTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the features' axis through the operations of a run.

    Each followed tensor has marks, a tensor of its shape: the number of each entry's feature, -1 if unknown. Marks differ along
    the axes of the features. Operations that move numbers move the marks likewise.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marks: Any = WeakTensorKeyDictionary()

    def __enter__(self) -> "_AxisTrace":
        self._handle = register_module_forward_hook(self._mark_output)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._handle.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def feature_axes(self, tensor: Tensor) -> list[int]:
        """Return the axes of a tensor's features: one if it is decided."""
        marks = self._marks.get(tensor)
        if marks is None or (axes := _varying(marks)) or not bool((marks >= 0).all()):
            return [] if marks is None else axes
        return [i for i, size in enumerate(tensor.shape) if size == 1][:1]  # a single feature

    def _mark_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(module, _FEATURES_LAST):
            return
        for tensor in tree_leaves(output)[: 1 if isinstance(module, nn.MultiheadAttention) else None]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                marks, last = self._marks.get(tensor), _numbered(tensor, -1)
                others = () if marks is None or not isinstance(module, nn.Linear) else _varying(marks)
                mixes = set(others) - {tensor.ndim - 1}  # a linear map over positions
                self._marks[tensor] = _union(marks, last) if mixes else last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with suppress(Exception):  # an operation that cannot be followed leaves its output undecided
            self._follow(func, args, kwargs or {}, result)
        return result

    def _follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        if func.is_view or name in _MOVES:
            moved = args[0]
            if func.is_view and moved not in self._marks and not isinstance(moved, nn.Parameter):
                self._marks[moved] = self._known(moved)  # it may be written to through the view
            function = torch.ops.aten.reshape if name in ("view", "_unsafe_view") else func
            marks = function(tree_map(self._known, moved), *args[1:])
            for tensor, own in zip(tree_leaves(result), tree_leaves(marks), strict=True):
                self._marks[tensor] = own
            return
        output = next(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        keys = [argument.name for argument in func._schema.arguments]
        own = self._computed(name.removeprefix("_"), keys, {**dict(zip(keys, args, strict=False)), **kwargs}, output)
        if own is None:
            if not name.endswith("_"):
                self._marks.pop(output, None)
        elif name.endswith("_") and output in self._marks and 0 not in self._marks[output].stride():
            self._marks[output].copy_(own)  # its base has the same marks
        else:
            self._marks[output] = own

    def _known(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        marks = self._marks.get(tensor)
        return torch.full_like(tensor, -1, dtype=torch.int32) if marks is None else marks

    def _computed(self, name: str, keys: Sequence[str], named: Mapping[str, Any], output: Tensor) -> Tensor | None:
        """Return the marks of the output of an operation with these arguments that computes new numbers."""
        first = self._marks.get(next((value for value in named.values() if isinstance(value, Tensor)), output))
        if any(part in name for part in _FEATURES_FIRST):
            return _claimed(first, output, 1)
        if name == "embedding":
            return _numbered(output, -1)
        if name.endswith(("layer_norm", "rms_norm")) and len(named["normalized_shape"]) == 1:
            return _claimed(first, output, -1)
        if (kind := re.search(r"(?:pool|upsample).*?(\d)d", name)) is not None:
            axis = output.ndim - 1 - int(kind[1])
            known = [] if first is None else _varying(first)
            return _numbered(output, axis) if not known or axis in known else None
        if "scaled_dot_product" in name:
            return _shared(self._marks[named["value"]], -2).expand(output.shape)
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = [self._marks.get(value) for value in named.values() if isinstance(value, Tensor)][-2:]
            return self._product(left, right, output, is_linear=name == "addmm")
        if "keepdim" in keys:
            return None if first is None else _shared(first, named.get("dim"), keep=named.get("keepdim", False))
        if name == "glu":
            return None if first is None else first.narrow(axis := named.get("dim", -1), 0, output.shape[axis])
        operands = [named["src"]] if name == "copy_" else tree_leaves(dict(named))
        parts = [self._marks[value] for value in operands if isinstance(value, Tensor) and value in self._marks]
        return _merged(aligned for part in parts if (aligned := _aligned(part, output)) is not None)

    @staticmethod
    def _product(left: Tensor | None, right: Tensor | None, output: Tensor, *, is_linear: bool) -> Tensor | None:
        """Return a matrix product's marks: of the right's columns, else of a linear map, else of the left's rows."""
        columns = set() if right is None else {axis - right.ndim for axis in _varying(right)}
        rows = set() if left is None else {axis - left.ndim for axis in _varying(left)}
        if right is not None and -1 in columns:
            return _shared(right, -2).expand(output.shape)
        if (-1 in rows and not columns) or (is_linear and not rows):
            last = _numbered(output, -1)
            return last if left is None or -2 not in rows else _union(left.amax(-1, True).expand(output.shape), last)
        if left is not None and -2 in rows and -1 not in rows:
            return _shared(left, -1).expand(output.shape)
        return None


def _claimed(marks: Tensor | None, output: Tensor, axis: int) -> Tensor:
    """Return the marks of an operation with features on an axis. Features known on other axes stay: both are undecided."""
    own = _numbered(output, axis)
    others = [] if marks is None or marks.shape[axis] == 1 else _varying(marks)
    if not others or axis % output.ndim in others:
        return own
    return _union(own, _numbered(output, others[0]))


def _numbered(tensor: Tensor, axis: int) -> Tensor:
    """Return marks that count along an axis."""
    size = [1] * tensor.ndim
    size[axis] = tensor.shape[axis]
    numbers = torch.arange(tensor.shape[axis], dtype=torch.int32, device=tensor.device)
    return numbers.view(size).expand(tensor.shape)


def _bounds(marks: Tensor, axes: Any, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest known mark along axes. Without one, the largest is -1."""
    axes = list(range(marks.ndim)) if axes is None or axes == [] else axes
    return torch.where(marks < 0, 2**31 - 1, marks).amin(axes, keep), marks.amax(axes, keep)


def _varying(marks: Tensor) -> list[int]:
    """Return the axes along which known marks differ."""
    bounds = [(axis, *_bounds(marks, axis, True)) for axis in range(marks.ndim) if marks.shape[axis] > 1]
    return [axis for axis, low, high in bounds if bool((low < high).any())]


def _shared(marks: Tensor, axes: Any, *, keep: bool = True) -> Tensor:
    """Return the marks that are the same along axes, else -1."""
    low, high = _bounds(marks, axes, keep)
    return torch.where(low < high, -1, high).to(torch.int32)


def _aligned(marks: Tensor, output: Tensor) -> Tensor | None:
    """Return an operand's marks in the shape of the output, or None if the features' axes have changed."""
    with suppress(RuntimeError):
        return marks.expand(output.shape)
    axes = _varying(marks)
    if marks.ndim != output.ndim or any(marks.shape[axis] != output.shape[axis] for axis in axes):
        return None
    others = [axis for axis in range(marks.ndim) if axis not in axes]
    return (_shared(marks, others) if others else marks).expand(output.shape)


def _merged(parts: Iterable[Tensor]) -> Tensor | None:
    """Return the marks of a sum or product of tensors. Where features are on different axes, marks differ along all of them."""
    merged: Tensor | None = None
    axes: set[int] = set()
    for part in parts:
        other = set(_varying(part))
        if merged is None or (other and (not axes or other < axes)):
            merged, axes = part, other
        elif other == axes:
            merged = torch.where(merged < 0, part, merged) if bool((merged < 0).any()) else merged
        elif other and not axes < other:
            merged, axes = _union(merged, part), axes | other
    return merged


def _union(one: Tensor, other: Tensor) -> Tensor:
    """Return marks that differ along the axes of both."""
    if set(_varying(other)) <= set(_varying(one)):
        return one
    both = torch.where((one < 0) | (other < 0), -1, one.long() * (int(other.max()) + 1) + other)
    numbers = torch.unique(both, return_inverse=True)[1].to(torch.int32)
    return numbers - int((both < 0).any())
