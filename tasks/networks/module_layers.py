"""Which modules of an `nn.Module` are its layers, and what they give while it runs.

Shapes: N samples, C channels, D numbers of a feature.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depthrate.tasks.parameters import ParameterError, format_value, nearest

HEAD = "head input"
"""Name of the layer that the last linear map reads, where that is another tensor than the last block gives."""
_SHOWN = 40
"""Modules that a message lists."""
_TORCH_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_ACTIVATIONS = ("ReLU", "GELU", "Tanh", "SiLU", "ELU", "LeakyReLU", "Sigmoid", "Mish")


@dataclass
class CapturedOutputs:
    """What hooks saw of one run: features of the measured modules in the order of their calls, and the last linear map."""

    features: dict[str, Tensor] = field(default_factory=dict)
    """As they were when their module gave them: what follows may work in place. Later calls of a module have other names."""
    last: Tensor | None = None
    """The last of them itself."""
    head: str | None = None
    head_input: Tensor | None = None
    head_output: Tensor | None = None
    before_head: tuple[str, Tensor] | None = None
    """The feature that was the last one when the last linear map was called: its name, and itself."""

    @property
    def reads_other(self) -> bool:
        """Whether the last linear map reads another tensor than the last measured module gave, or that one changed since."""
        if self.head_input is None:
            return False
        if self.before_head is None:
            return True
        name, feature = self.before_head
        return self.head_input is not feature or not torch.equal(self.head_input, self.features[name])

    def layers(self, *, with_head_input: bool) -> dict[str, Tensor]:
        """Return the features in the order in which they came to be; with what the last linear map reads in its place."""
        if not with_head_input:
            return self.features
        assert self.head_input is not None
        names = list(self.features)
        place = 0 if self.before_head is None else names.index(self.before_head[0]) + 1
        earlier, later = names[:place], names[place:]
        return (
            {name: self.features[name] for name in earlier}
            | {HEAD: self.head_input}
            | {name: self.features[name] for name in later}
        )


@contextmanager
def attention_by_modules() -> Iterator[None]:
    """Keep torch's transformer layers from their fast path: it calls none of their modules and has no gradient under vmap."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def capture_outputs(module: nn.Module, names: Sequence[str], head: str | None = None) -> Iterator[CapturedOutputs]:
    """Keep what the named modules give while the block runs, and what the last (or the named) linear map reads and gives."""
    watch, handles = CapturedOutputs(), []
    calls: Counter[str] = Counter()

    def begin(*_: Any) -> None:
        calls.clear()
        watch.features = {}
        watch.last = watch.before_head = None

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            calls[name] += 1
            watch.last = _tensor(output)
            watch.features[name if calls[name] == 1 else f"{name} (call {calls[name]})"] = watch.last.clone()

        return hook

    def keep_head(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            watch.head, watch.head_input, watch.head_output = name, inputs[0], output
            watch.before_head = None if watch.last is None else (next(reversed(watch.features)), watch.last)

        return hook

    handles.append(module.register_forward_pre_hook(begin))
    for name, inner in module.named_modules():
        if isinstance(inner, nn.Linear) and (head is None or name == head):
            # before the one that keeps its output: what was there until then
            handles.append(inner.register_forward_hook(keep_head(name)))
        if name in names:
            handles.append(inner.register_forward_hook(keep(name)))
    try:
        with attention_by_modules():
            yield watch
    finally:
        for handle in handles:
            handle.remove()


def pooled(feature: Tensor, maps: str) -> Tensor:
    """Return features [N, ...] as maps are measured: whole, or averaged over the pixels of a channel or over tokens (`mean`).

    Of [N, C, rows, columns] the channels stay, of [N, tokens, D] the D numbers.
    """
    if maps == "flatten" or feature.ndim <= 2:
        return feature
    return feature.mean(1) if feature.ndim == 3 else feature.flatten(2).mean(2)


def layer_names(module: nn.Module, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the modules to be measured: those that match a pattern (`blocks.*`), or those of the module's own list.

    Its own list are the children of a ModuleList or Sequential that are of one class: of the user's classes the most frequent
    there, else the most frequent Sequential, activation, linear map or block of a transformer of torch's. A `*` does not
    reach across a dot.

    Raises:
        ParameterError: nothing matches; the message lists the module's layers.
    """
    known = [name for name, _ in module.named_modules() if name]
    if patterns is None:
        names = _own_list(module)
        if names:
            return names
        raise ParameterError(
            "layers is null, and of no ModuleList or Sequential of the module are the children taken for its blocks; give a "
            f"pattern, such as blocks.*; {_listed(known)}"
        )
    measured: list[str] = []
    for pattern in patterns:
        matching = [n for n in known if n.count(".") == pattern.count(".") and fnmatch.fnmatchcase(n, pattern)]
        if not matching:
            raise ParameterError(
                f"layers has {pattern!r}, which matches no module{nearest(pattern, known)}; {_listed(known)}"
            )
        measured += [name for name in matching if name not in measured]
    return tuple(measured)


def _listed(known: Sequence[str]) -> str:
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"its modules: {', '.join(known[:_SHOWN])}{more}"


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


def _tensor(output: Any) -> Tensor:
    """Return a module's output; of several the first tensor, as attention gives it beside its weights."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ParameterError(
            f"a measured layer gives {format_value(type(output).__name__)} and no tensor; name others in layers"
        )
    return output
