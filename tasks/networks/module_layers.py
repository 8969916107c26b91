"""Layers of an `nn.Module`: selection of the measured modules, capture of their outputs in a run, and its random numbers.

Shapes: N samples, C channels, D numbers per feature.
"""

import fnmatch
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthrate.tasks.networks.module_flow import LinearMap, Products, tensors_of
from depthrate.tasks.parameters import ParameterError, format_value, nearest


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Seed all random numbers while the block runs, then restore their states."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def random_states() -> tuple[Any, ...]:
    """Return the states of all random numbers, for comparison."""
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


HEAD = "head input"
"""Name of the layer read by the last linear map, if it differs from the output of the last block."""
_MAX_MODULES_SHOWN = 40
"""Maximal number of modules listed in a message."""
_TORCH_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_ACTIVATIONS = ("ReLU", "GELU", "Tanh", "SiLU", "ELU", "LeakyReLU", "Sigmoid", "Mish")


@dataclass
class CapturedOutputs:
    """Outputs captured by hooks in one run: features of the measured modules in call order, and the last linear map."""

    features: dict[str, Tensor] = field(default_factory=dict)
    """Copies made when the module returned, since later operations may work in place. Repeated calls get other names."""
    last: Tensor | None = None
    """The last of the features, not copied."""
    head_input: Tensor | None = None
    head_weight: Tensor | None = None
    before_head: tuple[str, Tensor] | None = None
    """Name and tensor of the last feature before the call of the last linear map."""

    @property
    def reads_other(self) -> bool:
        """Whether the last linear map reads another tensor than the last measured module returned, or a changed one."""
        if self.head_input is None:
            return False
        if self.before_head is None:
            return True
        name, feature = self.before_head
        return self.head_input is not feature or not torch.equal(self.head_input, self.features[name])

    def layers(self, *, with_head_input: bool) -> dict[str, Tensor]:
        """Return the features in order of computation, including the input of the last linear map if requested."""
        if not with_head_input:
            return self.features
        assert self.head_input is not None
        layers = list(self.features.items())
        place = 0 if self.before_head is None else list(self.features).index(self.before_head[0]) + 1
        return dict([*layers[:place], (HEAD, self.head_input), *layers[place:]])


@contextmanager
def attention_by_modules() -> Iterator[None]:
    """Disable the fast path of torch's transformer layers, which calls no submodules and has no gradient under vmap."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


@contextmanager
def capture_outputs(
    module: nn.Module, places: Mapping[str, str], head: LinearMap | None = None
) -> Iterator[CapturedOutputs]:
    """Capture tensors at places of the outputs of named modules while the block runs, and the input and weight of a head."""
    watch, handles = CapturedOutputs(), []
    calls: Counter[str] = Counter()

    def reset(*_: Any) -> None:
        calls.clear()
        products.calls = 0
        watch.features = {}
        watch.last = watch.before_head = None

    def capture(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            calls[name] += 1
            watch.last = _tensor(output, places[name])
            watch.features[name if calls[name] == 1 else f"{name} (call {calls[name]})"] = watch.last.clone()

        return hook

    def capture_head(x: Tensor, weight_KD: Tensor) -> None:
        watch.head_input, watch.head_weight = x, weight_KD
        watch.before_head = None if watch.last is None else (next(reversed(watch.features)), watch.last)

    products = Products(None if head is None else head.call, capture_head)
    handles.append(module.register_forward_pre_hook(reset))
    for name, inner in module.named_modules():
        if name in places:
            handles.append(inner.register_forward_hook(capture(name)))
    try:
        following: Any = nullcontext() if head is None else products
        with attention_by_modules(), following:
            yield watch
    finally:
        for handle in handles:
            handle.remove()


def layer_names(module: nn.Module, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the measured modules: modules that match a pattern (`blocks.*`), or the children of the module's own list.

    The own list consists of the children of ModuleLists or Sequentials that have one class: the most frequent custom class,
    else the most frequent Sequential, activation, linear map or torch transformer block. A `*` does not match a dot.

    Raises:
        ParameterError: Nothing matches. The message lists the module's layers.
    """
    all_names = [name for name, _ in module.named_modules() if name]
    if patterns is None:
        names = _own_list(module)
        if names:
            return names
        raise ParameterError(
            "layers is null, but the module has no ModuleList or Sequential whose children could be its blocks. Set a "
            f"pattern, such as blocks.*. {_format_modules(all_names)}"
        )
    measured: list[str] = []
    for pattern in patterns:
        matching = [n for n in all_names if n.count(".") == pattern.count(".") and fnmatch.fnmatchcase(n, pattern)]
        if not matching:
            raise ParameterError(
                f"layers has {pattern!r}, which matches no module{nearest(pattern, all_names)}. {_format_modules(all_names)}"
            )
        measured += [name for name in matching if name not in measured]
    return tuple(measured)


def _format_modules(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_MODULES_SHOWN} more" if len(names) > _MAX_MODULES_SHOWN else ""
    return f"Modules: {', '.join(names[:_MAX_MODULES_SHOWN])}{more}."


def _own_list(module: nn.Module) -> tuple[str, ...]:
    children: list[tuple[str, nn.Module]] = []
    for name, inner in module.named_modules():
        if isinstance(inner, nn.ModuleList | nn.Sequential):
            prefix = f"{name}." if name else ""
            children += [(prefix + key, child) for key, child in inner.named_children()]

    def rank(child: nn.Module) -> int:
        if isinstance(child, nn.ModuleList):
            return 0
        if not type(child).__module__.startswith("torch."):
            return 5
        if isinstance(child, nn.Sequential):
            return 4
        if type(child).__name__ in _ACTIVATIONS:
            return 3
        return 2 if isinstance(child, nn.Linear) else int(isinstance(child, _TORCH_BLOCKS))

    counts = Counter((rank(child), type(child).__qualname__) for _, child in children)
    if not counts:
        return ()
    best_rank = max(key[0] for key in counts)
    if best_rank == 0:
        return ()
    best = max((key for key in counts if key[0] == best_rank), key=lambda key: counts[key])
    names = [name for name, child in children if (rank(child), type(child).__qualname__) == best]
    return tuple(name for name in names if not any(name.startswith(f"{other}.") for other in names if other != name))


def _tensor(output: Any, place: str) -> Tensor:
    """Return the tensor at a place of a module's output, or its only one."""
    tensors = tensors_of(output)
    if place not in tensors and len(tensors) != 1:
        raise ParameterError(
            f"a measured layer returns {format_value(type(output).__name__)} with {', '.join(tensors) or 'no tensors'}, "
            f"expected the tensor {place!r}. Set layers to others."
        )
    return tensors[place] if place in tensors else next(iter(tensors.values()))
