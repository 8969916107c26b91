"""Flow of samples through a run of an `nn.Module`: its last linear map, and the tensors taken of outputs that have several.

Each tensor of a run has sources: the samples, parameters, buffers, and those tensors of measured modules that it was computed
from after these returned. If it is a function of the output of one linear map alone, such as its softmax, that is its origin.

Shapes: N samples, D numbers per feature, K outputs.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.parameters import ParameterError

NETWORK = "arch"
"""Name of the network itself in `output_tensors`."""
TRAINED = ("logits", "last_hidden_state")
"""Names of tensors that are trained, whatever else a network returns."""
_PRODUCTS = ("linear", "matmul", "__matmul__", "mm", "addmm", "conv1d", "conv2d", "conv3d")
_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_REVERSING = ("neg", "__neg__", "negative", "rsub", "__rsub__")
"""Operations after which the output is a function of the weight's negative."""


def parse_pairs(text: str | Mapping[str, Any] | None) -> dict[str, str]:
    """Parse a mapping from patterns of layers, as in `rnn: TNC, blocks.*: NCL`."""
    pairs = text.items() if isinstance(text, Mapping) else (part.split(":") for part in (text or "").split(",") if part)
    return {name.strip(): str(value).strip() for name, value in pairs}


def tensors_of(output: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a module's output by place: key, field or number, and joined by dots if they are nested."""
    if isinstance(output, Tensor):
        return {prefix: output}
    if hasattr(output, "_asdict"):
        output = output._asdict()
    elif isinstance(output, tuple | list):
        output = dict(enumerate(output))
    elif not isinstance(output, Mapping):
        names = [field.name for field in fields(output)] if is_dataclass(output) else TRAINED
        output = {name: value for name in names if (value := getattr(output, name, None)) is not None}
    nested = [tensors_of(part, f"{prefix}.{key}" if prefix else str(key)) for key, part in output.items()]
    return {place: tensor for tensors in nested for place, tensor in tensors.items()}


def choose(name: str, tensors: Mapping[str, Tensor], possible: Iterable[str], stated: Mapping[str, str]) -> str:
    """Return the place of the tensor that is taken of an output: the stated one, else the only possible one.

    Raises:
        ParameterError: The stated place is none of the output's, or it must be stated.
    """
    place = next((place for pattern, place in stated.items() if fnmatch.fnmatchcase(name, pattern)), None)
    places = list({id(tensors[place]): place for place in reversed([*possible])}.values()) if place is None else [place]
    if len(places) != 1 or places[0] not in tensors:
        given = "" if place is None else f", but output_tensors has {place!r}"
        shown = ", ".join(f"{place} {list(tensor.shape)}" for place, tensor in tensors.items())
        raise ParameterError(
            f"{'the network' if name == NETWORK else f'layer {name}'} returns the tensors {shown}{given}. State the one to "
            f"{'train' if name == NETWORK else 'measure'}, as in output_tensors: {{{name!r}: {[*tensors][-1]}}}."
        )
    return places[0]


class TrainedOutput:
    """Forward hook of a network that returns the tensor to train, chosen once for each form of output."""

    def __init__(self, data: DataShape, stated: str | None):
        self._shape = (data.num_inputs, data.num_classes) if data.labels_tokens else (data.num_classes,)
        self._stated = {name: place for name, place in parse_pairs(stated).items() if name == NETWORK}
        self.places: dict[tuple[str, ...], str] = {}
        """Places of an output's tensors -> place of the trained one. Training mode may have another form."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        tensors = {} if isinstance(output, Tensor) else tensors_of(output)
        form, shape = tuple(tensors), (len(inputs[0]), *self._shape)
        if len(tensors) > 1 and form not in self.places:
            named = [name for name in TRAINED if name in tensors][:1]
            fitting = [place for place, t in tensors.items() if t.shape == shape and t.dtype in _NUMBERS]
            self.places[form] = choose(NETWORK, tensors, named or fitting or form[:1], self._stated)
        return tensors[self.places.get(form, form[0])] if tensors else output

    def remarks(self) -> list[str]:
        """Return which tensor is trained, for each form of output with several."""
        return [f"trains {place!r} of its outputs {', '.join(form)}" for form, place in self.places.items()]


class LinearMap(NamedTuple):
    """A product of a run with a weight [K, D] that does not depend on the samples."""

    call: int
    """Number of products before it in the run."""
    axis: int
    """Axis of its input's features."""
    num_outputs: int
    sources: frozenset[str]
    """Names of the parameters and buffers that its weight is computed from."""


class Products(TorchFunctionMode):
    """Finds the products of a run, and passes the input and the weight [K, D] of the one with a number to `take`."""

    def __init__(self, call: int | None = None, take: Callable[[Tensor, Tensor], None] | None = None):
        super().__init__()
        self.calls, self._call, self._take = 0, call, take

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        self._follow(name, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)], result)
        self.calls += name in _PRODUCTS
        return result

    def _follow(self, name: str, read: Sequence[Tensor], result: Any) -> None:
        """Follow an operation that has read these tensors."""
        if name in _PRODUCTS and self.calls == self._call and self._take is not None:
            x, _, weight_KD = self._operands(name, read)
            self._take(x, weight_KD)

    @staticmethod
    def _operands(name: str, read: Sequence[Tensor]) -> tuple[Tensor, int, Tensor]:
        """Return a product's input, the axis of its features, and its weight, [K, D] if it is a linear map of these."""
        x, weight = read[1:3] if name == "addmm" else read[:2]
        if name.startswith("conv"):
            return x, 1, weight.flatten(1) if weight.shape[1] == x.shape[1] else weight
        return x, -1, weight if name == "linear" or weight.ndim != 2 else weight.mT


class _Known(NamedTuple):
    tensor: Tensor
    sources: int
    """Bits of the numbers of its sources' names. The samples have the first."""
    origin: LinearMap | None


class Flow(Products):
    """Follows a run on samples `x`. It needs gradients, which show tensors computed by code that cannot be followed."""

    def __init__(self, module: nn.Module, names: Sequence[str], x: Tensor):
        super().__init__()
        self._layers = {name: module.get_submodule(name) for name in names}
        self._known: dict[int, _Known] = {}
        self._names: list[str] = []
        self.outputs: dict[str, dict[str, Tensor]] = {}
        for name, tensor in (("", x), *module.named_parameters(), *module.named_buffers()):
            self._mark(tensor, name)

    def __enter__(self) -> "Flow":
        self._handles = [part.register_forward_hook(self._hook(name)) for name, part in self._layers.items()]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def places(self, outputs: Iterable[Tensor], stated: str | Mapping[str, str] | None) -> dict[str, str]:
        """Return the place of the tensor to measure in the output of each called module.

        It is the first of torch's own modules, and else the one that the network's outputs are computed from.
        """
        used, places = {name for output in outputs for name in self._sources(output)}, dict[str, str]()
        for name, tensors in self.outputs.items():
            varying = [p for p, t in tensors.items() if self._of(t).sources & 1 and t.dtype in _NUMBERS]
            possible = [p for p in varying if f"{name} {p}" in used] or varying
            if len(tensors) == 1 or type(self._layers[name]).__module__.startswith("torch."):
                possible = [*tensors][:1]
            places[name] = choose(name, tensors, possible, parse_pairs(stated))
        return places

    def origin(self, tensor: Tensor) -> LinearMap | None:
        """Return the linear map of whose output alone a tensor is a function, or None."""
        return self._of(tensor).origin

    def outputs_of(self, head: LinearMap | None, places: Mapping[str, str]) -> set[str]:
        """Return the names of the modules whose tensor is a function of a linear map's output alone."""
        return {name for name in places if head is not None and self.origin(self.outputs[name][places[name]]) == head}

    def describe(self, layer: str, shape: str, places: Mapping[str, str]) -> str:
        """Add to the shape of a layer which tensor of its module's output it is, if there are several."""
        name = layer.partition(" (call")[0]
        tensors = self.outputs.get(name, {})
        return shape if len(tensors) < 2 else f"{shape} (output {places[name]} of {', '.join(tensors)})"

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            self.outputs[name] = tensors_of(output)
            for place, tensor in self.outputs[name].items():
                self._mark(tensor, f"{name} {place}")

        return hook

    def _mark(self, tensor: Tensor, name: str) -> None:
        """Make a tensor a source of what is computed from it."""
        known = self._of(tensor)
        self._known[id(tensor)] = known._replace(sources=known.sources | 1 << len(self._names))
        self._names.append(name)

    def _sources(self, tensor: Tensor) -> set[str]:
        lowest_first = bin(self._of(tensor).sources)[:1:-1]
        return {name for name, bit in zip(self._names, lowest_first, strict=False) if bit == "1"}

    def _of(self, tensor: Tensor) -> _Known:
        any_source = 0 if tensor.grad_fn is None else (1 << len(self._names)) - 1
        return self._known.get(id(tensor)) or _Known(tensor, any_source, None)

    def _follow(self, name: str, read: Sequence[Tensor], result: Any) -> None:
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        written = written or (list(read[:1]) if name == "__setitem__" else [])
        known, sources = [self._of(tensor) for tensor in read], 0
        for one in known:
            sources |= one.sources
        varying, fixed = ([one for one in known if one.sources & 1 == bit] for bit in (1, 0))
        origins, origin = {one.origin for one in varying}, None
        if name in _PRODUCTS:
            origin = self._linear_map(name, read)
        elif written and len(origins) == 1 and name not in _REVERSING:
            is_whole = name in ("mean", "sum") or "avg_pool" in name or written[0].numel() >= varying[0].tensor.numel()
            mixes = any(sum(size > 1 for size in one.tensor.shape) > 1 for one in fixed)  # as the weights of an LSTM
            origin = origins.pop() if is_whole and not mixes else None
        for tensor in written:
            self._known[id(tensor)] = _Known(tensor, sources, origin)
            if tensor._base is not None and any(tensor is one for one in read):  # written to through a view
                base = self._of(tensor._base)
                self._known[id(base.tensor)] = _Known(base.tensor, base.sources | sources, None)

    def _linear_map(self, name: str, read: Sequence[Tensor]) -> LinearMap | None:
        if len(read) < 2:
            return None
        x, axis, weight_KD = self._operands(name, read)
        weight = read[2 if name == "addmm" else 1]
        if self._of(weight).sources & 1 or not self._of(x).sources & 1 or weight_KD.ndim != 2:
            return None
        return LinearMap(self.calls, axis, len(weight_KD), frozenset(self._sources(weight)))
