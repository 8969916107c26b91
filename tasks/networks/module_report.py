"""Report on a user's `nn.Module`, from building it once and running it on two samples.

The run determines whether the module reads the data and returns K numbers per sample, which of its modules are measured, the
cost of a step, and whether several copies can train fused. Nothing is trained. The time of a step has a fixed part and a part
per sample, determined by two further runs with different numbers of samples.

Shapes: N samples, K classes, D numbers per feature.
"""

import fnmatch
import math
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from depthrate.tasks.code.explain import innermost_line
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.flat_parameters import gradients_of, join_rows, leaves_of, split_parameters, start_trials
from depthrate.tasks.networks.module_axes import Axes, find_axes, format_axes, pooled
from depthrate.tasks.networks.module_flow import NETWORK, Flow, LinearMap, TrainedOutput, parse_pairs
from depthrate.tasks.networks.module_layers import (
    attention_by_modules,
    capture_outputs,
    layer_names,
    random_states,
    seeded,
)
from depthrate.tasks.networks.module_state import influential_state
from depthrate.tasks.networks.network import Network, Tensors
from depthrate.tasks.parameters import ParameterError, format_value

FEW, MANY = 2, 16
"""Samples in the two runs that time a step."""
REPEATS = 3
MAX_RUNS = 8
"""Maximal number of steps in which modules that draw random numbers are observed."""
MAX_DEVIATION = 1e-2
"""Maximal deviation of a trial in a pack from the trial alone, relative to the largest number."""
LONG_S = 0.5
"""Duration from which a run is not repeated, and is also used for runs with more samples."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class TrainingReport:
    """Effects of a training step of a module."""

    trained: Mapping[str, tuple[int, ...]]
    """Name -> shape of the trained parameters."""
    carried: Mapping[str, tuple[int, ...]]
    """Name -> shape of buffers, and of parameters that are frozen or have no influence."""
    unfused_reason: str | None
    """Reason why its trials train one by one. None: they train fused."""
    is_random: bool
    """Whether training draws random numbers (dropout)."""
    changed: tuple[str, ...] = ()
    """Names of the tensors that a forward pass changes, such as running statistics, or weights that it normalises."""


@dataclass(frozen=True, kw_only=True)
class ModuleReport:
    """Properties of a module of one shape on data of one shape."""

    module: nn.Module
    """Instance into which trials' parameters are inserted."""
    training: TrainingReport
    places: Mapping[str, str]
    """Names of the measured modules, each with the place of the measured tensor in its output (`module_flow.tensors_of`)."""
    measured: Mapping[str, Axes]
    """Axes of the layers by name, in call order: calls of these modules, and the input of the head, if it is a separate
    layer."""
    outputs: tuple[str, ...]
    """Shape of each layer's output, with its averaged axes marked, and which of several tensors it is."""
    shapes: tuple[tuple[int, ...], ...]
    """Shape of one sample's feature at each layer."""
    head: LinearMap | None
    """The last linear map, if the module's output is a function of its output alone, or None."""
    logits: set[str]
    """Names of the measured modules that return such functions."""
    reads_other: bool
    """Whether the input of the head differs from the output of the last measured module and is thus a separate layer."""
    positions: int
    """Rows per sample in its widest linear map: 1, or tokens, or pixels."""
    products: int
    """Number of calls of linear maps and convolutions."""
    multiply_adds: float
    """Multiply-adds per sample."""
    kept: float
    """Numbers in the outputs of all modules per sample, stored for the backward pass."""


def build_module(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    seed: int,
    name: str,
    data: DataShape,
    trained: TrainedOutput | None = None,
) -> nn.Module:
    """Build a module with a user's callable, initialised by its own code under a seed, that returns the `trained` tensor.

    Lazy parameters are initialised by a run on two samples.

    Raises:
        ParameterError: The callable raises, or returns something else than a module.
    """
    with seeded(seed):
        try:
            module = make(**arguments)
        except Exception as error:
            call = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            raise ParameterError(f"{name}({call}) fails: {format_error(error)}") from error
        if not isinstance(module, nn.Module):
            raise ParameterError(f"{name} returns {format_value(type(module).__name__)}, expected an nn.Module")
        if any(is_lazy(tensor) for tensor in _tensors(module).values()):
            with torch.no_grad():
                _run(module.eval(), samples(data, 2), name)
            module.train()
        if not isinstance(module, torch.jit.ScriptModule):  # refused later, and takes no hooks
            module.register_forward_hook(trained or TrainedOutput(data, None))
    return module


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def format_error(error: BaseException) -> str:
    """Format an error with the line of the user's file that raised it."""
    return f"{innermost_line(error)}{type(error).__name__}: {error}"


def inspect_module(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    data: DataShape,
    *,
    name: str,
    patterns: Sequence[str] | None,
    maps: str,
    layer_axes: str | None,
    trained: TrainedOutput,
    output_tensors: str | None,
) -> ModuleReport:
    """Build a module, run it on two samples of the data's shape, and report its properties.

    Raises:
        ParameterError: It cannot be built or run, does not return K numbers per sample, or lacks the requested layers.
    """
    module, again = (build_module(make, arguments, 0, name, data, trained) for _ in range(2))
    _check_tensors(module, name)
    drawn = _tensors(again)
    for key, tensor in _tensors(module).items():
        if not torch.equal(tensor.detach().nan_to_num(), drawn[key].detach().nan_to_num()):
            raise ParameterError(
                f"{name} initialises {key!r} differently when it is built twice with one seed. Draw from torch, numpy.random "
                "or random, which each trial's seed sets, not from a generator of its own."
            )
    x = samples(data, 3)
    x_2 = x[:2]
    names = layer_names(module, patterns)
    module.eval()
    with seeded(0), attention_by_modules(), torch.enable_grad(), Flow(module, names, x_2) as flow:
        output = _run(module, x_2, name)
    _check_output(output, data, name)
    head, places = flow.origin(output), flow.places([output], output_tensors)
    missing = [name for name in names if name not in places]
    if missing:
        raise ParameterError(
            f"{name} never calls its module {missing[0]!r}, so that module cannot be measured. Choose other modules for layers."
        )
    head = head if head is not None and head.num_outputs == data.num_classes else None
    costs = _Costs()
    operations = _Operations()
    with seeded(0), capture_outputs(module, places, head) as watch, costs, torch.no_grad(), operations:
        before = random_states()
        output = _run(module, x_2, name)
        is_random = random_states() != before
    if data.labels_tokens:
        _check_causal(module, x_2, output, name)
    reads_other = watch.reads_other
    with seeded(0):
        found = find_axes(
            lambda x: _run(module, x, name), module, places, x, maps, layer_axes, head, with_head_input=reads_other
        )
    layers = watch.layers(with_head_input=reads_other)
    shapes = {layer: tuple(pooled(h, found[layer][0], maps).shape[1:]) for layer, h in layers.items()}
    training = _run_training_step(module, x_2, name, is_random)
    _check_state(again, x_2, name, training)
    known = [*places, *([NETWORK] if trained.places else [])]
    if unknown := [p for p in parse_pairs(output_tensors) if not any(fnmatch.fnmatchcase(layer, p) for layer in known)]:
        raise ParameterError(
            f"output_tensors has {unknown[0]!r}, but several tensors are only returned by {', '.join(known)}"
        )
    return ModuleReport(
        module=module,
        training=training,
        places=places,
        measured={layer: axes for layer, (axes, _) in found.items()},
        outputs=tuple(
            flow.describe(layer, format_axes(*found[layer], maps) or f"[{math.prod(shape)}]", places)
            for layer, shape in shapes.items()
        ),
        shapes=tuple(shapes.values()),
        head=head,
        logits=flow.outputs_of(head, places),
        reads_other=reads_other,
        positions=max(1, costs.positions),
        products=max(1, costs.products),
        multiply_adds=max(1.0, operations.flops / 4),  # two operations per multiply-add, two samples
        kept=max(1.0, costs.kept / 2),
    )


def _check_tensors(module: nn.Module, name: str) -> None:
    """Reject parameters that cannot be rows of a pack's numbers, or that have hooks."""
    for key, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and (part is module or _tensors(part)):
            cure = "trials' tensors cannot be inserted. Leave out torch.jit.script and torch.jit.trace"
            raise ParameterError(f"{name} has a TorchScript module ({key or 'the whole'}), in which {cure}.")
    for key, p in module.named_parameters():
        hook = "register_hook" if p._backward_hooks else "register_post_accumulate_grad_hook"
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            cure = "training does not call. Compute its effect in the forward function, as weight * mask for a mask"
            raise ParameterError(f"parameter {key!r} of {name} has a hook ({hook}), which {cure}.")
        if p.is_complex() or (p.is_floating_point() and p.itemsize < torch.float32.itemsize):
            raise ParameterError(
                f"parameter {key!r} of {name} is {p.dtype}, but trials train in float32 or float64 (dtype). Leave it in "
                "float32. For products in bfloat16 set matmul_precision: bf16, or use torch.autocast in the forward function, "
                "and for complex numbers torch.view_as_complex."
            )


def _check_state(module: nn.Module, x: Tensor, name: str, training: TrainingReport) -> None:
    """Reject a module whose numbers depend on Python state that its calls change."""
    starts = {key: tensor.detach().clone() for key, tensor in _tensors(module).items()}

    def computed() -> list[Tensor]:
        outputs = list[Tensor]()
        for is_training in (True, False):
            with seeded(0):
                outputs.append(_run(module.train(is_training), x, name))
            if is_training:
                leaves = {key: p for key, p in module.named_parameters() if key in training.trained}
                outputs += gradients_of(outputs[0].square().sum(), leaves, some_unused=True)
            _restore(module, starts)
        return [output.detach() for output in outputs]

    if (names := influential_state(module, computed)) is not None:
        raise ParameterError(
            f"{name} changes {names} in its calls, outside of its tensors, and computes other numbers then. Trials and "
            "measurements would share it. Keep numbers between calls in buffers (register_buffer), with torch.where instead of "
            "if, and draw random numbers from torch, numpy.random or random."
        )


def _restore(module: nn.Module, starts: Tensors) -> None:
    for key, tensor in _tensors(module).items():
        if not torch.equal(tensor, starts[key]):
            tensor.data = starts[key].clone()


def _run(module: nn.Module, x: Tensor, name: str) -> Any:
    try:
        return module(x)
    except ParameterError:
        raise
    except Exception as error:
        kind = "tokens" if not x.is_floating_point() else "numbers"
        kind += f", or with signal_inputs: true {list(x.shape[2:])}" if x.shape[1:2] == (1,) and x.ndim == 4 else ""
        raise ParameterError(
            f"{name} does not accept samples of shape {list(x.shape[1:])} ({kind}, or with flat_inputs: true "
            f"[{math.prod(x.shape[1:])}]): {format_error(error)}{_embedding_hint(module, x)}"
        ) from error


def _embedding_hint(module: nn.Module, x: Tensor) -> str:
    if not x.is_floating_point() or not any(isinstance(part, nn.Embedding) for part in module.modules()):
        return ""
    return ". It embeds tokens, but the samples are numbers. For custom tokens, add vocabulary_size next to x and y."


def _check_output(output: Any, data: DataShape, name: str) -> None:
    shape = (2, data.num_inputs, data.num_classes) if data.labels_tokens else (2, data.num_classes)
    number = data.num_classes
    expected = f"a tensor [N, {number}], one number per sample for each of the data's {number} classes"
    if data.labels_tokens:
        expected = f"a tensor [N, {', '.join(map(str, shape[1:]))}], outputs for the next token at each token"
    if not isinstance(output, Tensor):
        raise ParameterError(f"{name} returns {format_value(type(output).__name__)}, expected {expected}")
    if output.ndim == 3 and output.shape[0] == 2 and not data.labels_tokens:
        raise ParameterError(
            f"{name} returns {list(output.shape)} for 2 samples, one row per token as in language models, expected {expected}. "
            "Apply its last linear map to the last token, h[:, -1], or set task: next_token, which trains on the token after "
            "each."
        )
    if output.shape != shape:
        raise ParameterError(f"{name} returns {list(output.shape)} for 2 samples, expected {expected}")


def _check_causal(module: nn.Module, x: Tensor, output: Tensor, name: str) -> None:
    """Reject a module whose outputs depend on the tokens it predicts."""
    other = x.clone()
    other[:, -1] = (x[:, -1] + 1) % (int(x.max()) + 1)
    with seeded(0), torch.no_grad():
        changed = _run(module, other, name)
    if not torch.allclose(changed[:, :-1], output[:, :-1], rtol=1e-3, atol=1e-5):
        raise ParameterError(
            f"{name} changes the outputs of earlier tokens when the last token changes, so it reads the tokens it predicts. "
            "Mask its attention (nn.Transformer.generate_square_subsequent_mask), or pad its convolutions on the left only."
        )


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the operations of a run: their multiply-adds, the types of their results, and the memory that they write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops, self.types, self.written = 0, set[torch.dtype](), set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        self.types |= {leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        if func._schema.is_mutable:
            self.written |= {_memory(leaf) for leaf in tree_leaves((args[:1], (kwargs or {}).get("out")))}
        return result


def _memory(tensor: Any) -> int:
    """Return the address of a tensor's numbers, or another number if it has none."""
    return (tensor.untyped_storage().data_ptr() or id(tensor)) if isinstance(tensor, Tensor) else 0


class _Costs:
    """Counts the operations of modules without children in one run, by a hook."""

    positions, products, kept = 1, 0, 0.0

    def __enter__(self) -> None:
        self._handle = register_module_forward_hook(self._count)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _count(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or any(True for _ in module.children()):
            return
        self.kept += output.numel()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            channels = module.out_features if isinstance(module, nn.Linear) else module.out_channels
            self.positions = max(self.positions, output.numel() // channels // max(1, output.shape[0]))
            self.products += 1


def _run_training_step(module: nn.Module, x: Tensor, name: str, is_random: bool) -> TrainingReport:
    """Run forward and backward passes in training mode, and report what the module trains, carries and draws."""
    candidates = {key: p for key, p in module.named_parameters() if p.requires_grad}
    starts = {key: tensor.detach().clone() for key, tensor in _tensors(module).items()}
    used, changed, types = set(), set(), set[torch.dtype]()
    for run in range(MAX_RUNS):
        module.train()
        places = {key: _memory(tensor) for key, tensor in _tensors(module).items()}
        with seeded(run):
            before = random_states()
            with _Operations() as operations:
                output = _run(module, x, name)
            is_random |= random_states() != before
            used |= _used(output, candidates, name)
        types |= operations.types
        for key, tensor in _tensors(module).items():
            is_moved = key in candidates and _memory(tensor) != places[key]
            if is_moved or places[key] in operations.written or not torch.equal(tensor, starts[key]):
                changed.add(key)
        _restore(module, starts)
        if not is_random or len(used) == len(candidates):
            break
        if not run:  # a step may skip modules, as with stochastic depth
            module.eval()
            with seeded(0):
                used |= _used(_run(module, x, name), candidates, name)
    trained = {key: tuple(p.shape) for key, p in candidates.items() if key in used}
    if not trained:
        raise ParameterError(f"the output of {name} depends on none of its parameters, so it cannot be trained")
    carried = {key: tuple(p.shape) for key, p in module.named_parameters() if key not in trained}
    carried |= {key: tuple(b.shape) for key, b in module.named_buffers()}
    names = tuple(sorted(changed))
    reason = _unfused_reason(module, is_random, names)
    if overwritten := changed & trained.keys():
        reason = f"it overwrites its parameter {min(overwritten)} in each call"
    elif short := [dtype for dtype in types if dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize]:
        reason = reason or f"it computes in {short[0]}, which rounds differently over a trial axis"
    return TrainingReport(trained, carried, reason, is_random, names)


def _used(output: Tensor, candidates: Mapping[str, Tensor], name: str) -> set[str]:
    """Return the parameters on which the output depends."""
    if not candidates:
        return set()
    try:
        gradients = torch.autograd.grad(output.sum(), list(candidates.values()), allow_unused=True)
    except Exception as error:
        raise ParameterError(f"{name} cannot be trained: {format_error(error)}") from error
    for key, gradient in zip(candidates, gradients, strict=True):
        if gradient is not None and gradient.is_sparse:
            cure = "which training does not have. Set sparse=False, for the same numbers"
            raise ParameterError(f"parameter {key!r} of {name} has sparse gradients, {cure}.")
    return {key for key, gradient in zip(candidates, gradients, strict=True) if gradient is not None}


def _unfused_reason(module: nn.Module, is_random: bool, changed: Sequence[str]) -> str | None:
    """Return the rule by which trials train one by one, or None."""
    if is_random:
        return "it draws random numbers (dropout), which would depend on the pack"
    if changed:
        owner = changed[0].rpartition(".")[0]
        kind = type(module.get_submodule(owner)).__name__
        return f"{owner or 'it'} ({kind}) updates running statistics, which round differently over a trial axis"
    for key, part in module.named_modules():
        if isinstance(part, _CONVOLUTIONS) and (part.kernel_size != part.stride and math.prod(part.kernel_size) > 1):
            kind = type(part).__name__
            return f"{key} ({kind}) is a convolution, which is no faster over a trial axis and rounds differently there"
    return None


def fault_of_training(
    network: Network,
    data: DataShape,
    dtype: torch.dtype,
    run_alone: Callable[[int, Tensors, Tensor, bool], tuple[Tensor, Tensor]],
) -> str | None:
    """Train and measure two trials on three samples as a pack does, fused or one by one, and return why that fails, or None.

    Each takes two steps, since a module may keep tensors between calls. The second trial is compared with a new module alone:
    `run_alone` takes its seed, its state, samples and whether it trains, and returns output and gradient.
    """
    x_NI = samples(data, 3).flatten(1)
    x_NI = x_NI.to(dtype) if x_NI.is_floating_point() else x_NI
    streams = [torch.Generator().manual_seed(seed) for seed in range(2)]
    theta_TP, state = start_trials(network, "", streams, dtype)
    parameters, results = split_parameters(theta_TP, network.parameter_specs()), []
    packs = [slice(0, 2)] if network.unfused_reason is None else [slice(0, 1), slice(1, 2)]
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop because we have not yet implemented")
            for pack in packs:
                x_TNI = x_NI.expand(pack.stop - pack.start, *x_NI.shape)
                after: Tensors = {key: tensor[pack].clone() for key, tensor in state.items()}
                for is_training in (True, True, False):
                    before: Tensors = after
                    leaves = leaves_of({key: tensor[pack].clone() for key, tensor in parameters.items()})
                    if is_training:
                        output_TNK, after = network.training_logits(leaves, x_TNI, before)
                    else:
                        output_TNK = network.logits(leaves, x_TNI, before)
                    gradients = gradients_of(output_TNK.square().sum(), leaves, some_unused=True)
                    results.append((is_training, before, (output_TNK, join_rows(gradients))))
                    after = {key: tensor.detach() for key, tensor in after.items()}
                    with torch.no_grad():
                        list(network.features(leaves, x_TNI, before))
        for is_training, before, values in results[-2:]:
            with torch.enable_grad():
                alone = run_alone(1, {key: tensor[-1] for key, tensor in before.items()}, x_NI, is_training)
            for value, wanted in zip(values, alone, strict=True):
                atol = MAX_DEVIATION * float(wanted.detach().abs().max())
                if not torch.allclose(value[-1], wanted, rtol=0, atol=max(atol, 1e-6), equal_nan=True):
                    return "a step in a pack gives other numbers than alone, as if it kept tensors between calls"
    except UserWarning as warning:  # not faster, and rounds differently from a single trial
        operation = re.search(r"aten::(\w+)", str(warning))
        return f"torch cannot batch an operation in it over a trial axis ({operation[1] if operation else 'unnamed'})"
    except Exception as error:
        text = format_error(error).partition("\n")[0]
        return text if network.unfused_reason else f"it does not run over a trial axis: {text}"
    return None


def step_seconds(module: nn.Module, data: DataShape) -> tuple[float, float]:
    """Measure the CPU seconds of a step on one core, and return the fixed part and the part per sample."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    was_training = module.training
    try:
        with seeded(0):
            few_s = _seconds(module, samples(data, FEW))
            if few_s > LONG_S:
                return 0.0, few_s / FEW
            many_s = _seconds(module, samples(data, MANY))
    finally:
        torch.set_num_threads(threads)
        module.train(was_training)
        for name, value in module.named_buffers():  # restores running statistics, which training mode changes
            value.copy_(buffers[name])
    per_sample_s = max(0.0, many_s - few_s) / (MANY - FEW)
    return max(0.0, few_s - FEW * per_sample_s), per_sample_s


def samples(data: DataShape, number: int) -> Tensor:
    """Draw samples [number, *shape] of the data's shape: tokens or numbers."""
    generator = torch.Generator().manual_seed(0)
    shape = (number, *data.sample_shape)
    if data.vocabulary_size is not None:
        return torch.randint(data.vocabulary_size, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _seconds(module: nn.Module, x: Tensor) -> float:
    """Return the minimal CPU seconds of a forward and backward pass, including a warm-up pass."""
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    durations_s = []
    for _ in range(1 + REPEATS):
        started = time.process_time()
        torch.autograd.grad(module(x).sum(), parameters, allow_unused=True)
        durations_s.append(time.process_time() - started)
        if durations_s[-1] > LONG_S:
            break
    return min(durations_s)
