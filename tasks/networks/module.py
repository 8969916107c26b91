"""A user's `nn.Module` as a network over a trial axis: T sets of parameters for one module instance.

Its trials train fused (`torch.func.vmap`) if that changes nothing for any of them, otherwise one by one, each exactly as if it
were alone. The report comes from one run on two samples (`module_report`).

Shapes: T trials, N samples, I numbers per sample, K classes.
"""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.native.codegen.errors import CannotGenerateError
from depthrate.tasks.networks.flat_parameters import as_numbers, gradients_of
from depthrate.tasks.networks.module_axes import pooled
from depthrate.tasks.networks.module_flow import TrainedOutput
from depthrate.tasks.networks.module_layers import attention_by_modules, capture_outputs, seeded
from depthrate.tasks.networks.module_report import (
    ModuleReport,
    build_module,
    fault_of_training,
    inspect_module,
    step_seconds,
)
from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StateSpec, StepCost, Tensors
from depthrate.tasks.parameters import ParameterError

DRAWS = "random numbers drawn"
"""State [T, 2] of a module that draws random numbers: the trial's seed, and the number of steps with draws."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleNetwork(Network):
    """A module returned by `make(**arguments)`.

    Layers are the outputs of the measured modules, call by call, numbered from 1 in call order, and the input
    of the last linear map. Decay groups: `last` for that map's weight, `hidden` for the others selected by `decayed`.
    """

    make: Callable[..., Any]
    name: str
    """Name of the callable, for messages."""
    arguments: Mapping[str, Any]
    data: DataShape
    """Data shape, with the sample's shape as read by the module."""
    patterns: tuple[str, ...] | None = None
    """Patterns of the measured modules. None: the module's own list."""
    maps: str = "mean"
    layer_axes: str | None = None
    """Axes of layers stated by the user (`module_axes.parse_axes`)."""
    output_tensors: str | None = None
    """Places of tensors in outputs stated by the user (`module_flow`)."""
    decayed: tuple[str, ...] | None = None
    """Patterns of the decayed parameters. None: all with two dimensions or more."""
    dtype: str = "float32"
    """Type of the numbers in which trials are tried for a plan."""
    has_generated_steps = None
    may_skip_parameters = True

    @cached_property
    def report(self) -> ModuleReport:
        """Properties found by one run on two samples.

        Raises:
            ParameterError: See `module_report.inspect_module`.
        """
        return inspect_module(
            self.make,
            self.arguments,
            self.data,
            name=self.name,
            patterns=self.patterns,
            maps=self._maps,
            layer_axes=self.layer_axes,
            trained=self._trained,
            output_tensors=self.output_tensors,
        )

    @cached_property
    def _trained(self) -> TrainedOutput:
        return TrainedOutput(self.data, self.output_tensors)

    @property
    def _maps(self) -> str:
        return "positions" if self.data.labels_tokens else self.maps

    def parameter_specs(self) -> list[ParameterSpec]:
        return [
            ParameterSpec(name, shape, max(1, math.prod(shape[1:])), self._decay(name, shape))
            for name, shape in self.report.training.trained.items()
        ]

    def _decay(self, name: str, shape: tuple[int, ...]) -> str | None:
        matches = (fnmatch.fnmatchcase(name, pattern) for pattern in self.decayed or ())
        decays = len(shape) > 1 if self.decayed is None else any(matches)
        if not decays:
            return None
        return "last" if self.report.head is not None and name in self.report.head.sources else "hidden"

    def state_specs(self) -> list[StateSpec]:
        """Return the module's buffers and frozen parameters, and the count of random draws if it draws."""
        specs = [StateSpec(name, shape, 0.0) for name, shape in self.report.training.carried.items()]
        return [*specs, StateSpec(DRAWS, (2,), 0.0)] if self.report.training.is_random else specs

    def layers(self) -> list[Layer]:
        layers = zip(self.report.measured, self.report.shapes, self.report.outputs, strict=True)
        return [
            Layer(number, shape, name, is_output=name in self.report.logits, output=output)
            for number, (name, shape, output) in enumerate(layers, start=1)
        ]

    def remarks(self) -> list[str]:
        head = self.report.head
        if head is None:
            of_head = (
                "no last linear map was found, so its input and what compares features with its weight are not measured"
            )
        else:
            of_head = f"the weight of the last linear map is {', '.join(sorted(head.sources)) or 'constant'}"
        return [*self._trained.remarks(), of_head]

    @property
    def input_layer(self) -> Layer | None:
        return None if self.data.vocabulary_size is not None else Layer(0, (self.data.num_inputs,), "input")

    def step_cost(self) -> StepCost:
        report = self.report
        return StepCost(
            report.products, report.multiply_adds / report.positions, kept=2 * report.kept / report.positions
        )

    def step_s(self, num_samples: int) -> float:
        fixed_s, per_sample_s = self._step_seconds
        return fixed_s + num_samples * per_sample_s

    @cached_property
    def _step_seconds(self) -> tuple[float, float]:
        self._restore()
        return step_seconds(self.report.module, self.data)

    @property
    def rows_per_sample(self) -> int:
        return self.report.positions

    @cached_property
    def unfused_reason(self) -> str | None:
        """Reason why its trials train one by one. None: they train fused. Two trials are tried on a few samples.

        Raises:
            ParameterError: They train in neither way.
        """

        def fault(reason: str | None) -> str | None:
            dtype = getattr(torch, self.dtype)
            return fault_of_training(self._with_unfused_reason(reason), self.data, dtype, self._run_alone)

        reason = self.report.training.unfused_reason or fault(None)
        if reason is not None and (text := fault(reason)) is not None:
            raise ParameterError(
                f"{self.name} cannot be trained: {text}. Keep numbers between calls in buffers (register_buffer), and draw "
                "random numbers from torch, numpy.random or random."
            )
        return reason

    def _with_unfused_reason(self, reason: str | None) -> ModuleNetwork:
        """Return the network with this reason and a new module, which may keep what it computes."""
        other = copy.copy(self)
        module = build_module(self.make, self.arguments, 0, self.name, self.data, self._trained)
        vars(other).update(unfused_reason=reason, report=replace(self.report, module=module))
        return other

    def start(self, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensors]:
        """Return parameters [P], flat, and state, initialised by the module's own code under a seed."""
        module = build_module(self.make, self.arguments, seed, self.name, self.data, self._trained)
        tensors = {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}
        theta_P = torch.cat([tensors[name].to(dtype).flatten() for name in self.report.training.trained])
        state = {name: tensors[name] for name in self.report.training.carried}
        state = {name: as_numbers(tensor, dtype) for name, tensor in state.items()}
        if self.report.training.is_random:
            state[DRAWS] = torch.tensor([seed, 0])
        return theta_P, state

    def _run_alone(self, seed: int, state: Tensors, x_NI: Tensor, is_training: bool) -> tuple[Tensor, Tensor]:
        """Return output and gradients of a new module's step from its initial parameters, as torch computes them."""
        module, leaves = self._own_module(seed, state)
        with _seeded(state.get(DRAWS)), attention_by_modules():
            output = module.train(is_training)(x_NI.reshape(len(x_NI), *self.data.sample_shape))
            gradients = gradients_of(output.square().sum(), leaves, some_unused=True)
        return output, torch.cat([gradient.flatten() for gradient in gradients])

    def _own_module(self, seed: int, values: Tensors) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return a new module, initialised under a seed but for these tensors, and its trained parameters."""
        module = build_module(self.make, self.arguments, seed, self.name, self.data, self._trained)
        module._apply(partial(as_numbers, dtype=getattr(torch, self.dtype)))  # type: ignore[no-untyped-call]
        parameters = dict(module.named_parameters())
        for name, tensor in (*parameters.items(), *module.named_buffers()):
            if name in values:
                tensor.data.copy_(values[name])
        return module, {name: parameters[name] for name in self.report.training.trained}

    def plain_module(self, parameters: Tensors, state: Tensors) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
        module, leaves = self._own_module(0, {name: t[0] for name, t in {**parameters, **state}.items()})
        module.train()
        return leaves, lambda x_NI: module(x_NI.reshape(len(x_NI), *self.data.sample_shape))

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        self._prepare(x_TNI, is_training=False)
        return self._over_trials(self._call, parameters, state, x_TNI)

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        self._prepare(x_TNI, is_training=True)
        states = []

        def step(parameters: Tensors, state: dict[str, Tensor], x_NI: Tensor) -> Tensor:
            output = self._call(parameters, state, x_NI)
            if DRAWS in state:
                state[DRAWS] = state[DRAWS] + torch.tensor([0, 1], device=state[DRAWS].device)
            states.append(state)
            return output

        if self.unfused_reason is None:
            return self._over_trials(self._call, parameters, state, x_TNI), state
        logits_TNK = self._over_trials(step, parameters, state, x_TNI)
        return logits_TNK, {name: torch.stack([after[name] for after in states]) for name in state}

    def step_texts(self) -> list[str]:
        """Return what the module is made of, with the files of its classes. Functions in other files are not included."""
        classes = {cls for part in self.report.module.modules() for cls in type(part).__mro__}
        names = {self.make.__module__, *(cls.__module__ for cls in classes)}
        files = [getattr(sys.modules.get(name), "__file__", None) for name in names if not name.startswith("torch.")]
        texts = [Path(file).read_text(encoding="utf-8", errors="replace") for file in files if file is not None]
        return [self.name, repr(sorted(self.arguments.items())), repr(self.data.sample_shape), *sorted(texts)]

    def step_logits(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> Tensor:
        training = self.report.training
        if training.is_random:
            raise CannotGenerateError("it draws random numbers (dropout)")
        if training.changed:
            kind = "parameter" if training.changed[0] in training.trained else "buffer"
            raise CannotGenerateError(f"a step changes its {kind} {training.changed[0]}")
        self._restore()
        self.report.module.train()
        try:
            # as alone, because while a trace replaces torch's functions, the reason would not be that of training
            return self._call(parameters, state, x_NI, is_fused=False)
        finally:
            self._restore()

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the features [T, N, D] layer by layer. The module runs once, so all are in memory."""
        self._prepare(x_TNI, is_training=False)
        yield from self._over_trials(self._features, parameters, state, x_TNI)

    def _features(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> tuple[Tensor, ...]:
        report = self.report
        with capture_outputs(report.module, report.places, report.head) as watch:
            self._call(parameters, state, x_NI)
        layers = watch.layers(with_head_input=report.reads_other)
        return tuple(pooled(layers[name], axes, self._maps) for name, axes in report.measured.items())

    def last_weights(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> Tensor | None:
        head, module = self.report.head, self.report.module
        if head is None:
            return None

        def weight_of(parameters: Tensors, state: Tensors, x_NI: Tensor) -> Tensor:
            with capture_outputs(module, {}, head) as watch:
                self._call(parameters, state, x_NI)
            assert watch.head_weight is not None
            return watch.head_weight

        x_TNI = x_NI[:2].expand(len(next(iter(parameters.values()))), *x_NI[:2].shape)
        self._prepare(x_TNI, is_training=False)
        weights: Tensor = self._over_trials(weight_of, parameters, state, x_TNI)
        return weights

    @cached_property
    def _tensor_names(self) -> dict[str, str]:
        """Place of each tensor in the module -> its name. A shared tensor has several places, a shared module one."""
        module, names = self.report.module, {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            names[id(tensor)] = name
        places = [
            (f"{prefix}.{key}" if prefix else key, tensor)
            for prefix, part in module.named_modules()
            for key, tensor in (*part._parameters.items(), *part._buffers.items())
        ]
        return {place: names[id(tensor)] for place, tensor in places if tensor is not None}

    def _call(self, parameters: Tensors, state: Tensors, x_NI: Tensor, is_fused: bool | None = None) -> Tensor:
        """Run the module with a trial's tensors, which stay in it until the next call or the end of a fused one.

        Its own code may read them again in the backward pass (checkpointing) and when its mode changes (caches).
        """
        self._restore()
        is_fused = self.unfused_reason is None if is_fused is None else is_fused
        own, module = {**parameters, **state}, self.report.module
        x = x_NI.reshape(x_NI.shape[0], *self.data.sample_shape)
        stack = vars(self.report)["in_module"] = ExitStack()
        stack.enter_context(
            _reparametrize_module(module, {place: own[name] for place, name in self._tensor_names.items()})
        )
        try:
            if not is_fused:
                module.train(not module.training).train(not module.training)
            with attention_by_modules(), _seeded(state.get(DRAWS)):
                output = module(x)
            if self.report.training.changed and isinstance(state, dict):
                # a module may also assign another tensor to a buffer
                now = dict([*module.named_parameters(), *module.named_buffers()])
                state |= {name: now.get(name, tensor) for name, tensor in state.items()}
            return output
        finally:
            if is_fused:
                self._restore()

    def _restore(self) -> None:
        """Put the module's own tensors back into it."""
        vars(self.report).pop("in_module", ExitStack()).close()

    def _over_trials(self, call: Callable[..., Any], parameters: Tensors, state: Tensors, x_TNI: Tensor) -> Any:
        """Call `call` for all trials, fused or one by one, and stack the results."""
        if self.unfused_reason is None:
            return torch.func.vmap(call)(dict(parameters), dict(state), x_TNI)
        outputs, replaced = [], [name for name in self.report.training.changed if name in parameters]
        for trial, x_NI in enumerate(x_TNI):
            trial_parameters = {name: tensor[trial] for name, tensor in parameters.items()}
            trial_parameters |= {name: trial_parameters[name].clone() for name in replaced}
            trial_state = {name: tensor[trial].clone() for name, tensor in state.items()}  # modules update it in place
            outputs.append(call(trial_parameters, trial_state, x_NI))
            for name in replaced if self.report.module.training else ():
                parameters[name].data[trial] = trial_parameters[name].data
        if isinstance(outputs[0], torch.Tensor):
            return torch.stack(outputs)
        return tuple(torch.stack(layer) for layer in zip(*outputs, strict=True))

    def _prepare(self, x_TNI: Tensor, *, is_training: bool) -> None:
        """Move the module to the device of the samples. It may have tensors that are not registered as buffers."""
        _ = self.unfused_reason  # tries steps, before those of the trials
        self._restore()
        self.report.module.to(x_TNI.device).train(is_training)


@contextmanager
def _seeded(draws_2: Tensor | None) -> Iterator[None]:
    """Seed random numbers for one step of one trial by the trial's seed and its steps alone."""
    if draws_2 is None:
        yield
        return
    digest = hashlib.sha256(repr(draws_2.tolist()).encode()).digest()
    with seeded(int.from_bytes(digest[:8], "big") >> 1, [draws_2.device] if draws_2.is_cuda else []):
        yield
