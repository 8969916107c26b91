"""What a user's `nn.Module` tells of itself, found by building it once and running it on two samples.

That run says whether it reads the data and gives a row of K numbers a sample, which of its modules are measured, what a step
costs, and whether several of it can train fused. Nothing here trains.

Shapes: N samples, K classes, D numbers of a feature.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

from depthrate.tasks.code.explain import innermost_line
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.module_layers import capture_outputs, layer_names, pooled
from depthrate.tasks.networks.module_seconds import samples
from depthrate.tasks.parameters import ParameterError, format_value

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class ModuleReport:
    """What is known of a module of one shape on data of one shape."""

    module: nn.Module
    """An instance: the skeleton that trials' parameters are put into."""
    trained: Mapping[str, tuple[int, ...]]
    """Name -> shape of what is trained."""
    carried: Mapping[str, tuple[int, ...]]
    """Name -> shape of buffers, and of parameters that are frozen or without influence."""
    modules: tuple[str, ...]
    """Names of the modules whose outputs are measured."""
    measured: tuple[str, ...]
    """Names of the layers in the order in which they run: of calls of these modules, and of what the head reads, where that
    counts."""
    shapes: tuple[tuple[int, ...], ...]
    """Of one sample's feature at each layer."""
    head: str | None
    """Name of the last linear map, whose output is the module's; null where there is none."""
    reads_other: bool
    """Whether the head reads another tensor than the last measured module gave, so that it is a layer of its own."""
    positions: int
    """Rows that a sample is in the widest of its linear maps: 1, or tokens, or pixels."""
    products: int
    """Calls of linear maps and convolutions."""
    multiply_adds: float
    """Of one sample."""
    kept: float
    """Numbers that modules give for one sample, which the backward pass needs."""
    unfused_reason: str | None
    """Why its trials train one by one; null: fused."""
    is_random: bool
    """Whether training draws random numbers (dropout)."""


def build_module(make: Callable[..., Any], arguments: Mapping[str, Any], seed: int, name: str) -> nn.Module:
    """Return the module that a user's callable gives, initialised by its own code under a seed.

    Raises:
        ParameterError: it raises, naming the line, or gives no module.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = make(**arguments)
        except Exception as error:
            given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            raise ParameterError(f"{name}({given}) fails: {format_error(error)}") from error
    if not isinstance(module, nn.Module):
        raise ParameterError(
            f"{name} gives {format_value(type(module).__name__)}; give a callable that returns an nn.Module"
        )
    return module


def format_error(error: BaseException) -> str:
    """Return an error with the line of a user's file that it came from."""
    return f"{innermost_line(error)}{type(error).__name__}: {error}"


def inspected(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    data: DataShape,
    *,
    name: str,
    patterns: Sequence[str] | None,
    maps: str,
) -> ModuleReport:
    """Build a module, run it on two samples of the data's shape, and return what there is to know of it.

    Raises:
        ParameterError: it cannot be built or run, does not give a row of K numbers a sample, or has no such layers.
    """
    module = build_module(make, arguments, 0, name)
    x = samples(data, 2)
    names = layer_names(module, patterns)
    module.eval()
    costs = _Costs(module)
    flops = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), capture_outputs(module, names) as watch, costs, torch.no_grad(), flops:
        output = _run(module, x, name)
    _check_output(output, data, name)
    if data.labels_tokens:
        _check_causal(module, x, output, name)
    missing = [name for name in names if name not in watch.features]
    if missing:
        raise ParameterError(
            f"{name} never calls its module {missing[0]!r}, which is to be measured; name others in layers"
        )
    has_head = watch.head_output is output and watch.head_input is not None
    reads_other = has_head and watch.reads_other
    layers = watch.layers(with_head_input=reads_other)
    training = _trained(module, x, name)
    return ModuleReport(
        module=module,
        trained=training.trained,
        carried=training.carried,
        modules=names,
        measured=tuple(layers),
        shapes=tuple(tuple(pooled(feature, maps).shape[1:]) for feature in layers.values()),
        head=watch.head if has_head and f"{watch.head}.weight" in training.trained else None,
        reads_other=reads_other,
        positions=max(1, costs.positions),
        products=max(1, costs.products),
        multiply_adds=max(1.0, flops.get_total_flops() / 4),  # two operations a product, two samples
        kept=max(1.0, costs.kept / 2),
        unfused_reason=training.unfused_reason,
        is_random=training.is_random,
    )


def _run(module: nn.Module, x: Tensor, name: str) -> Any:
    try:
        return module(x)
    except Exception as error:
        kind = "tokens" if not x.is_floating_point() else "numbers"
        raise ParameterError(
            f"{name} does not take samples of shape {list(x.shape[1:])} ({kind}; with flat_inputs: true they come as "
            f"[{math.prod(x.shape[1:])}]){_embedding_hint(module, x)}: {format_error(error)}"
        ) from error


def _embedding_hint(module: nn.Module, x: Tensor) -> str:
    if not x.is_floating_point() or not any(isinstance(each, nn.Embedding) for each in module.modules()):
        return ""
    return "; it embeds tokens, and these are numbers: of tokens of your own give vocabulary_size beside x and y"


def _check_output(output: Any, data: DataShape, name: str) -> None:
    shape = (2, data.num_inputs, data.num_classes) if data.labels_tokens else (2, data.num_classes)
    wanted = f"a tensor [N, {data.num_classes}], a row of numbers a sample for the data's {data.num_classes} classes"
    if data.labels_tokens:
        wanted = f"a tensor [N, {', '.join(map(str, shape[1:]))}], for each token a row of numbers for the next one"
    if not isinstance(output, Tensor):
        has_logits = isinstance(getattr(output, "logits", None), Tensor)
        raise ParameterError(
            f"{name} returns {format_value(type(output).__name__)}; it must return {wanted}"
            + (": return its .logits" if has_logits else "")
        )
    if output.ndim == 3 and output.shape[0] == 2 and not data.labels_tokens:
        raise ParameterError(
            f"{name} returns {list(output.shape)} for 2 samples, a row a token as language models do; it must return "
            f"{wanted}: let its last linear map read the last token, h[:, -1], or give task: next_token, which "
            "trains such rows on the token after each"
        )
    if output.shape != shape:
        raise ParameterError(f"{name} returns {list(output.shape)} for 2 samples; it must return {wanted}")


def _check_causal(module: nn.Module, x: Tensor, output: Tensor, name: str) -> None:
    """Refuse a module that reads the tokens that it is to predict."""
    other = x.clone()
    other[:, -1] = (x[:, -1] + 1) % (int(x.max()) + 1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        changed = _run(module, other, name)
    if not torch.allclose(changed[:, :-1], output[:, :-1], rtol=1e-3, atol=1e-5):
        raise ParameterError(
            f"{name} gives earlier tokens other outputs when the last token changes: it reads what it is to predict; "
            "mask its attention (nn.Transformer.generate_square_subsequent_mask), or pad its convolutions in front"
        )


class _Costs:
    """Counts what modules do in one run, by hooks."""

    def __init__(self, module: nn.Module):
        self._module = module
        self.positions, self.products, self.kept = 1, 0, 0.0

    def __enter__(self) -> None:
        leaves = [module for module in self._module.modules() if not any(True for _ in module.children())]
        self._handles = [leave.register_forward_hook(self._count) for leave in leaves]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _count(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            return
        self.kept += output.numel()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            channels = module.out_features if isinstance(module, nn.Linear) else module.out_channels
            self.positions = max(self.positions, output.numel() // channels // max(1, output.shape[0]))
            self.products += 1


@dataclass(frozen=True)
class _Training:
    trained: dict[str, tuple[int, ...]]
    carried: dict[str, tuple[int, ...]]
    unfused_reason: str | None
    is_random: bool


def _trained(module: nn.Module, x: Tensor, name: str) -> _Training:
    """Run a training step's forward and backward pass, and see what it changes, draws and needs."""
    module.train()
    buffers = {key: value.clone() for key, value in module.named_buffers()}
    candidates = {key: p for key, p in module.named_parameters() if p.requires_grad}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        output = _run(module, x, name)
        is_random = not torch.equal(before, torch.get_rng_state())
        found = torch.autograd.grad(output.sum(), list(candidates.values()), allow_unused=True)
    trained = {key: tuple(p.shape) for (key, p), g in zip(candidates.items(), found, strict=True) if g is not None}
    if not trained:
        raise ParameterError(f"{name} has no parameter that its output depends on: there is nothing to train")
    changed = [key for key, value in module.named_buffers() if not torch.equal(buffers[key], value)]
    for key, value in module.named_buffers():
        value.copy_(buffers[key])
    carried = {key: tuple(p.shape) for key, p in module.named_parameters() if key not in trained}
    carried |= {key: tuple(b.shape) for key, b in module.named_buffers()}
    reason = _alone(module, x, is_random, changed)
    return _Training(trained, carried, reason, is_random)


def _alone(module: nn.Module, x: Tensor, is_random: bool, changed: Sequence[str]) -> str | None:
    """Return why trials train one by one: a rule first, then whether it runs over a trial axis at all."""
    if is_random:
        return "it draws random numbers while it trains (dropout), which would depend on the pack"
    if changed:
        owner = changed[0].rpartition(".")[0]
        kind = type(module.get_submodule(owner)).__name__
        return f"{owner or 'it'} ({kind}) keeps running statistics, which round otherwise over a trial axis"
    for key, each in module.named_modules():
        if isinstance(each, _CONVOLUTIONS) and (each.kernel_size != each.stride and math.prod(each.kernel_size) > 1):
            return f"{key} ({type(each).__name__}) is a convolution, which is no faster over a trial axis and rounds otherwise"
    tensors = {
        key: torch.stack([t.detach(), t.detach()]) for key, t in [*module.named_parameters(), *module.named_buffers()]
    }
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop because we have not yet implemented")
            vmap(lambda each, sample: functional_call(module, each, (sample,)))(tensors, torch.stack([x, x]))
    except UserWarning as said:  # no faster, and not as each is alone: rounding differs
        operation = re.search(r"aten::(\w+)", str(said))
        return f"torch has no form over a trial axis of an operation in it ({operation[1] if operation else 'unnamed'})"
    except Exception as error:
        return f"it does not run over a trial axis: {format_error(error)}".partition("\n")[0]
    return None
