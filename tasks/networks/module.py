"""A user's `nn.Module` as a network over a trial axis: T sets of its parameters in one skeleton.

Its trials train fused (`torch.func.vmap`) where that changes nothing for each of them; else one after the other, each exactly
as if it were alone. The report comes from one run on two samples (`module_report`). Importable without torch.

Shapes: T trials, N samples, I numbers of a sample, K classes.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StateSpec, StepCost, Tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from depthrate.tasks.networks.module_report import ModuleReport

DRAWS = "random numbers drawn"
"""State [T, 2] of a module that draws random numbers: the trial's seed, and how many steps have drawn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleNetwork(Network):
    """A module that `make(**arguments)` returns; eager, since its code is the user's.

    Layers are the measured modules' outputs, call by call, numbered from 1 in the order in which they run, and what the last
    linear map reads. Decay groups: `last` for that map's weight, `hidden` for what `decayed` chooses of the rest.
    """

    make: Callable[..., Any]
    name: str
    """Of the callable, for messages."""
    arguments: Mapping[str, Any]
    data: DataShape
    """With the sample's shape as the module reads it."""
    patterns: tuple[str, ...] | None = None
    """Of the modules that are measured; null: the module's own list."""
    maps: str = "mean"
    decayed: tuple[str, ...] | None = None
    """Patterns of parameter names that decay; null: all of two dimensions or more."""
    is_compilable = False

    @cached_property
    def report(self) -> ModuleReport:
        """What one run on two samples told.

        Raises:
            ParameterError: see `module_report.inspected`.
        """
        from depthrate.tasks.networks.module_report import inspected

        return inspected(self.make, self.arguments, self.data, name=self.name, patterns=self.patterns, maps=self.maps)

    @property
    def last_weight(self) -> str | None:  # type: ignore[override]
        """The weight of the last linear map."""
        return None if self.report.head is None else f"{self.report.head}.weight"

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the module's trained parameters in its order."""
        return [
            ParameterSpec(name, shape, max(1, math.prod(shape[1:])), self._decay(name, shape))
            for name, shape in self.report.trained.items()
        ]

    def _decay(self, name: str, shape: tuple[int, ...]) -> str | None:
        chosen = self.decayed or ()
        decays = (
            len(shape) > 1 if self.decayed is None else any(fnmatch.fnmatchcase(name, pattern) for pattern in chosen)
        )
        if not decays:
            return None
        return "last" if name == self.last_weight else "hidden"

    def state_specs(self) -> list[StateSpec]:
        """Return the module's buffers and frozen parameters, and a count of random draws where there are any."""
        specs = [StateSpec(name, shape, 0.0) for name, shape in self.report.carried.items()]
        return [*specs, StateSpec(DRAWS, (2,), 0.0)] if self.report.is_random else specs

    def layers(self) -> list[Layer]:
        """Return the measured modules, and what the head reads."""
        shapes = zip(self.report.measured, self.report.shapes, strict=True)
        return [
            Layer(number, shape, name, is_output=name == self.report.head)
            for number, (name, shape) in enumerate(shapes, start=1)
        ]

    @property
    def input_layer(self) -> Layer | None:
        """The input, where it is numbers."""
        return None if self.data.vocabulary_size is not None else Layer(0, (self.data.num_inputs,), "input")

    def step_cost(self) -> StepCost:
        """Return what a step takes for one row, counted on two samples."""
        report = self.report
        return StepCost(
            report.products, report.multiply_adds / report.positions, kept=2 * report.kept / report.positions
        )

    def step_s(self, num_samples: int) -> float:
        """Return the seconds of a step, measured on few samples."""
        fixed_s, each_s = self._step_seconds
        return fixed_s + num_samples * each_s

    @cached_property
    def _step_seconds(self) -> tuple[float, float]:
        from depthrate.tasks.networks.module_seconds import step_seconds

        return step_seconds(self.report.module, self.data)

    @property
    def rows_per_sample(self) -> int:
        """Tokens or pixels of a sample in the widest linear map."""
        return self.report.positions

    @property
    def unfused_reason(self) -> str | None:
        """Why its trials train one by one; null: fused."""
        return self.report.unfused_reason

    def start(self, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensors]:
        """Return parameters [P], flat, and state as the module's own code initialises them under a seed."""
        import torch

        from depthrate.tasks.networks.module_report import build_module

        module = build_module(self.make, self.arguments, seed, self.name)
        tensors = {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}
        theta_P = torch.cat([tensors[name].to(dtype).flatten() for name in self.report.trained])
        state = {name: tensors[name] for name in self.report.carried}
        state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}
        if self.report.is_random:
            state[DRAWS] = torch.tensor([seed, 0])
        return theta_P, state

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        """Return the output [T, N, K] in evaluation mode."""
        self._skeleton(x_TNI).eval()
        return self._over_trials(self._call, parameters, state, x_TNI)

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return the output [T, N, K] in training mode, and the state after it."""
        import torch

        self._skeleton(x_TNI).train()
        if self.unfused_reason is None:
            return self._over_trials(self._call, parameters, state, x_TNI), state
        outputs, states = [], []
        for trial, x_NI in enumerate(x_TNI):
            own = {name: tensor[trial].clone() for name, tensor in state.items()}  # statistics are changed in place
            with _drawing(own.get(DRAWS)):
                outputs.append(self._call({name: p[trial] for name, p in parameters.items()}, own, x_NI))
            if DRAWS in own:
                own[DRAWS] = own[DRAWS] + torch.tensor([0, 1], device=own[DRAWS].device)
            states.append(own)
        return torch.stack(outputs), {name: torch.stack([own[name] for own in states]) for name in state}

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the features [T, N, D] layer by layer; the module is run once, so all are held."""
        self._skeleton(x_TNI).eval()
        yield from self._over_trials(self._features, parameters, state, x_TNI)

    def _features(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> tuple[Tensor, ...]:
        from depthrate.tasks.networks.module_layers import capture_outputs, pooled

        report = self.report
        with capture_outputs(report.module, report.modules, report.head) as watch:
            self._call(parameters, state, x_NI)
        layers = watch.layers(with_head_input=report.reads_other)
        return tuple(pooled(layers[name], self.maps) for name in report.measured)

    def _call(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> Tensor:
        from torch.func import functional_call

        from depthrate.tasks.networks.module_layers import attention_by_modules

        tensors = {**parameters, **{name: tensor for name, tensor in state.items() if name != DRAWS}}
        x = x_NI.reshape(x_NI.shape[0], *self.data.sample_shape)
        with attention_by_modules():
            return functional_call(self.report.module, tensors, (x,))

    def _over_trials(self, call: Callable[..., Any], parameters: Tensors, state: Tensors, x_TNI: Tensor) -> Any:
        """Return what a call gives for each trial, stacked: fused, or one trial after the other."""
        import torch

        if self.unfused_reason is None:
            return torch.func.vmap(call)(dict(parameters), dict(state), x_TNI)
        outputs = []
        for trial, x_NI in enumerate(x_TNI):
            own = {name: tensor[trial] for name, tensor in parameters.items()}
            held = {name: tensor[trial].clone() for name, tensor in state.items()}  # a module may change it in place
            outputs.append(call(own, held, x_NI))
        if isinstance(outputs[0], torch.Tensor):
            return torch.stack(outputs)
        return tuple(torch.stack(layer) for layer in zip(*outputs, strict=True))

    def _skeleton(self, x_TNI: Tensor) -> Any:
        """Return the module, on the device of the samples: it may have tensors that are no buffers of it."""
        return self.report.module.to(x_TNI.device)


class _drawing:
    """Random numbers of one step of one trial: they depend on its seed and its steps alone."""

    def __init__(self, draws_2: Tensor | None):
        self._draws_2 = draws_2

    def __enter__(self) -> None:
        import torch

        if self._draws_2 is None:
            return
        devices = [self._draws_2.device] if self._draws_2.is_cuda else []
        self._fork = torch.random.fork_rng(devices=devices)
        self._fork.__enter__()
        digest = hashlib.sha256(repr(self._draws_2.tolist()).encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def __exit__(self, *error: Any) -> None:
        if self._draws_2 is not None:
            self._fork.__exit__(*error)
