"""A network's whole training step as one program: traced once, compiled into a file that any process can load.

Forward pass, gradient and update become one graph in which the number of trials is a variable, so that one file serves packs of
any size, and a trial's numbers do not depend on how many run beside it. Nothing of the run stays inside: parameters, moments,
per-trial hyper-parameters, learning rates and the batch are its inputs, and it changes the first in place.

Run as a program (`python -m`) it compiles what its input names: that takes some 400 MB, which the worker then does not keep.

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
from depthrate.tasks.training.step import Moments, StepNumbers, clip_factor, gradients, optimise
from depthrate.tasks.training.training_plan import TrainingPlan

EXAMPLE_TRIALS = 4
"""Of the inputs it is traced with; any number from 2 on gives the same program."""
MAX_TRIALS = 65536


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """What a step's program depends on."""

    network: Network
    plan: TrainingPlan
    batch_shape: tuple[int, ...]
    """Of the samples of one trial's batch, (B, I)."""
    input_dtype: torch.dtype
    shares_batches: bool
    """Whether all trials have one batch, which then comes without a trial axis."""
    device: str

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

        `theta`, `first`, `second` (of Adam, else empty) hold a tensor [T, *shape] a parameter, `untrained` one a state,
        `decays` one [T, 1] a decay group; momentum, rate and correction are those of `StepNumbers`.
        """
        network, plan, specs = self.network, self.plan, self.network.parameter_specs()
        names = [spec.name for spec in network.state_specs()]
        if self.shares_batches:
            num_trials = momentum_T1.shape[0]
            x, labels = x.expand(num_trials, *x.shape), labels.expand(num_trials, *labels.shape)
        parameters = {spec.name: p for spec, p in zip(specs, theta, strict=True)}
        before = dict(zip(names, untrained, strict=True))
        loss_T, found, after = gradients(network, plan, parameters, x, labels, before)
        with torch.no_grad():
            decay_T1 = dict(zip(decay_groups(specs), decays, strict=True))
            pieces = [
                g.clone() if spec.decay is None else g + _broadcast(decay_T1[spec.decay], p) * p
                for spec, p, g in zip(specs, theta, found, strict=True)
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
                before[name].copy_(after[name])
        return loss_T

    def examples(self, num_trials: int = EXAMPLE_TRIALS) -> tuple[object, ...]:
        """Return inputs of `run`, laid out in memory as a trainer's are: parameters are columns of rows of P numbers."""
        specs, dtype = self.network.parameter_specs(), self.plan.dtype
        width = sum(spec.size for spec in specs)

        def pieces() -> list[Tensor]:
            made = []
            for spec in specs:
                strides = torch.empty(spec.shape, device="meta").stride()
                shape = (num_trials, *spec.shape)
                made.append(torch.empty_strided(shape, (width, *strides), dtype=dtype, device=self.device).zero_())
            return made

        def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=self.device)

        own = () if self.shares_batches else (num_trials,)
        second = pieces() if self.plan.keeps_squares else []
        untrained = [zeros(num_trials, *spec.shape) for spec in self.network.state_specs()]
        decays = [zeros(num_trials, 1) for _ in decay_groups(specs)]
        batch = zeros(*own, *self.batch_shape, of=self.input_dtype), zeros(*own, self.batch_shape[0], of=torch.int64)
        columns = zeros(num_trials, 1), zeros(num_trials, 1), zeros()
        return (pieces(), pieces(), second, untrained, decays, *columns, *batch)


def _broadcast(column_T1: Tensor, piece: Tensor) -> Tensor:
    """Return a column [T, 1] in a shape that broadcasts over a parameter [T, *shape]."""
    return column_T1.view(-1, *[1] * (piece.dim() - 1))


def compile_program(program: StepProgram, path: str) -> None:
    """Compile a step for this processor into a file that `torch._C._aoti.AOTIModelPackageLoader` loads."""
    import torch._inductor
    from torch.export import Dim, export
    from torch.utils import _pytree as pytree

    torch.set_num_threads(1)  # the program is made for as many threads as there are now
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

    state = inputs[:-3]  # what follows are Adam's correction, the samples and the labels
    flags = [pytree.tree_map(lambda _: True, each) for each in state]
    return (*flags, False, not program.shares_batches, not program.shares_batches)


def _trace(program: StepProgram, inputs: tuple[object, ...]) -> torch.fx.GraphModule:
    """Return the graph of a step, gradient included, with a symbol for the number of trials.

    `torch.export` traces no gradients by itself. That 1 is a number of trials like any other has to be said, or one trial alone
    would need a program of its own, which rounds differently.
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
    """End this process and the compiler that it runs once the worker that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    compile_program(*pickle.load(sys.stdin.buffer))  # from the worker that started us
