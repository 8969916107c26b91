"""A network's whole training step as one program, traced once and compiled into a file that any process can load.

Forward pass, gradient and update are one graph with the number of trials as a variable. One file therefore serves packs of
any size, and a trial's numbers do not depend on the pack. The program has no state: parameters, moments, hyper-parameters,
learning rates and the batch are inputs, and parameters and moments are updated in place.

`python -m` with this module compiles the program on its standard input. This takes about 400 MB of memory, which the worker
does not need.

Shapes: T trials, B batch, I input dimensions, P parameters of one trial.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.networks.flat_parameters import decay_groups
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.pack_state import PackState
from depthrate.tasks.training.step import Moments, StepNumbers, clip_factor, gradients, optimise
from depthrate.tasks.training.training_plan import TrainingPlan

EXAMPLE_TRIALS = 4
"""Number of trials in the tracing inputs. Any number of at least 2 gives the same program."""
MAX_TRIALS = 65536


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """Everything that a step's program depends on."""

    network: Network
    plan: TrainingPlan
    batch_shape: tuple[int, ...]
    """Shape (B, I) of one trial's batch."""
    input_dtype: torch.dtype
    shares_batches: bool
    """Whether all trials share one batch, which then has no trial axis."""

    @classmethod
    def from_trainer(cls, trainer: PackState) -> StepProgram:
        """Describe a trainer's step."""
        return cls(
            network=trainer.network,
            plan=trainer.plan,
            batch_shape=(trainer.samples_per_step, *trainer.x_NI.shape[1:]),
            input_dtype=trainer.x_NI.dtype,
            shares_batches=trainer.shares_batches,
        )

    def run(
        self,
        theta: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        untrained: Sequence[Tensor],
        decays: Sequence[Tensor],
        momentum_T1: Tensor,
        rate_T1: Tensor,
        correction: Tensor,
        x: Tensor,
        labels: Tensor,
    ) -> Tensor:
        """Advance T trials by one step in place and return their losses [T].

        Args:
            theta: Parameters, [T, *shape] each.
            first: First moments of the parameters.
            second: Mean squares of the parameters, empty without Adam.
            untrained: Untrained state, [T, *shape] each.
            decays: Weight decay [T, 1] of each decay group.
            momentum_T1: As in `StepNumbers`.
            rate_T1: As in `StepNumbers`.
            correction: As in `StepNumbers`.
            x: Batch, with a trial axis unless it is shared.
            labels: Classes of the batch.
        """
        network, plan, specs = self.network, self.plan, self.network.parameter_specs()
        names = [spec.name for spec in network.state_specs()]
        if self.shares_batches:
            num_trials = momentum_T1.shape[0]
            x, labels = x.expand(num_trials, *x.shape), labels.expand(num_trials, *labels.shape)
        parameters = {spec.name: p for spec, p in zip(specs, theta, strict=True)}
        state = dict(zip(names, untrained, strict=True))
        loss_T, raw_gradients, new_state = gradients(network, plan, parameters, x, labels, state)
        with torch.no_grad():
            decay_T1 = dict(zip(decay_groups(specs), decays, strict=True))
            pieces = [
                g.clone() if spec.decay is None else g + _broadcast(decay_T1[spec.decay], p) * p
                for spec, p, g in zip(specs, theta, raw_gradients, strict=True)
            ]
            if plan.clip_norm is not None:
                squares_T1 = torch.stack([(g * g).flatten(1).sum(1) for g in pieces], dim=1).sum(1, keepdim=True)
                factor_T1 = clip_factor(plan.clip_norm, squares_T1)
                pieces = [g * _broadcast(factor_T1, g) for g in pieces]
            for index, (p, g) in enumerate(zip(theta, pieces, strict=True)):
                moments = Moments(first[index], second[index] if second else None)
                optimise(
                    plan, p, moments, g, StepNumbers(_broadcast(momentum_T1, p), _broadcast(rate_T1, p), correction)
                )
            for name in names:
                state[name].copy_(new_state[name])
        return loss_T

    def examples(self) -> tuple[object, ...]:
        """Create inputs of `run` with a trainer's memory layout: parameters are columns of rows of P numbers."""
        specs, dtype, num_trials = self.network.parameter_specs(), self.plan.dtype, EXAMPLE_TRIALS
        width = sum(spec.size for spec in specs)

        def pieces() -> list[Tensor]:
            tensors = []
            for spec in specs:
                strides = torch.empty(spec.shape, device="meta").stride()
                shape = (num_trials, *spec.shape)
                tensors.append(torch.empty_strided(shape, (width, *strides), dtype=dtype).zero_())
            return tensors

        def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of)

        trial_axis = () if self.shares_batches else (num_trials,)
        second = pieces() if self.plan.keeps_squares else []
        untrained = [zeros(num_trials, *spec.shape) for spec in self.network.state_specs()]
        decays = [zeros(num_trials, 1) for _ in decay_groups(specs)]
        x = zeros(*trial_axis, *self.batch_shape, of=self.input_dtype)
        labels = zeros(*trial_axis, self.batch_shape[0], of=torch.int64)
        columns = zeros(num_trials, 1), zeros(num_trials, 1), zeros()
        return (pieces(), pieces(), second, untrained, decays, *columns, x, labels)


def _broadcast(column_T1: Tensor, piece: Tensor) -> Tensor:
    """Reshape a column [T, 1] so that it broadcasts over a parameter [T, *shape]."""
    return column_T1.view(-1, *[1] * (piece.dim() - 1))


def compile_program(program: StepProgram, path: str) -> None:
    """Compile a step for this processor into a file for `torch._C._aoti.AOTIModelPackageLoader`."""
    import torch._inductor
    from torch.export import Dim, export
    from torch.utils import _pytree as pytree

    torch.set_num_threads(1)  # the program is compiled for the current number of threads
    inputs = program.examples()
    graph = _trace(program, inputs)

    class Whole(torch.nn.Module):
        def forward(self, inputs: Any) -> Any:
            return graph(*inputs)

    trials = Dim("T", min=1, max=MAX_TRIALS)
    dynamic = pytree.tree_map(lambda along: {0: trials} if along else None, _has_trial_axis(program, inputs))
    exported = export(Whole(), (inputs,), dynamic_shapes=(dynamic,), strict=False)
    torch._inductor.aoti_compile_and_package(exported, package_path=path)


def _has_trial_axis(program: StepProgram, inputs: tuple[object, ...]) -> tuple[object, ...]:
    """Return for each tensor of a step's inputs whether its first axis is the trials'."""
    from torch.utils import _pytree as pytree

    state = inputs[:-3]  # followed by Adam's correction, the samples and the labels
    flags = [pytree.tree_map(lambda _: True, tensors) for tensors in state]
    return (*flags, False, not program.shares_batches, not program.shares_batches)


def _trace(program: StepProgram, inputs: tuple[object, ...]) -> torch.fx.GraphModule:
    """Trace the graph of a step, including gradients, with a symbolic number of trials.

    `torch.export` does not trace gradients itself. `specialize_zero_one=False` lets the symbol be 1 as well. Otherwise a single
    trial would need a separate program, which rounds differently.
    """
    from torch._dynamo.source import LocalSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
    from torch.utils import _pytree as pytree

    fake = FakeTensorMode(shape_env=ShapeEnv(specialize_zero_one=False))
    leaves, structure = pytree.tree_flatten(inputs)
    flags = pytree.tree_leaves(_has_trial_axis(program, inputs))
    fakes = []
    for index, (tensor, along) in enumerate(zip(leaves, flags, strict=True)):
        kinds = [DimDynamic.DUCK if along and axis == 0 else DimDynamic.STATIC for axis in range(tensor.dim())]
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        fakes.append(fake.from_tensor(tensor, symbolic_context=context, source=LocalSource(f"input_{index}")))

    def run(*inputs: Any) -> Tensor:
        return program.run(*inputs)

    with fake:
        return make_fx(run, tracing_mode="symbolic")(*pytree.tree_unflatten(fakes, structure))


def _exit_with_parent(parent: int) -> None:
    """Kill this process and its compiler once the worker that started it has exited."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    compile_program(*pickle.load(sys.stdin.buffer))  # from the worker that started us
