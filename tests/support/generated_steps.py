"""Generated steps of modules, many of them in one library, beside the same steps by autograd.

Shapes: N samples, I numbers of a sample, P parameters.
"""

import copy
import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from depthrate.tasks.native.build import FLAGS, NUMBERS, SOURCES
from depthrate.tasks.native.codegen.cuda_emit import CudaSource
from depthrate.tasks.native.codegen.cuda_plan import Tuning
from depthrate.tasks.native.codegen.generate import generate, generate_cuda, tile_samples
from depthrate.tasks.native.codegen.trace import Tile
from depthrate.tasks.native.compiler import compiler
from depthrate.tasks.native.library import Call, Library
from depthrate.tasks.native.table import StepTable, TableLibrary
from tests.support.surveyed_modules import CLASSES, SHAPES, VOCABULARY, Case

QUICK = (*(flag for flag in FLAGS if flag != "-O3"), "-O0", "-w")
"""Flags of libraries that take few steps: they take a tenth of a second per module to build."""
MOMENTUM, DECAY = 0.9, 1e-3
STEPS = 3


@dataclass
class Problem:
    """A module, samples and labels, and how it is trained on them."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    x_NI: Tensor
    labels_N: Tensor
    batch: int
    positions: int = 1
    loss: str = "ce"
    smoothing: float = 0.0
    dtype: torch.dtype = torch.float32
    rate: float = 0.05

    def __post_init__(self) -> None:
        self.module = self.module.to(self.dtype)
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randperm(len(self.x_NI), generator=generator)[: self.batch] for _ in range(STEPS)]
        self.order_SB = torch.stack(drawn)

    def table(self) -> StepTable:
        """Generate the step.

        Raises:
            CannotGenerateError: It cannot be generated.
        """
        tile, groups, options = self._tile(tile_samples(self.batch, self.positions))
        return generate(tile, groups, **options)

    def cuda_source(self, tuning: Tuning) -> CudaSource:
        """Generate the step for a GPU."""
        tile, groups, options = self._tile(tile_samples(self.batch, self.positions, tuning.tile_rows))
        return generate_cuda(tile, groups, tuning, **options)

    def _tile(self, samples: int) -> tuple[Tile, dict[str, int], dict[str, Any]]:
        state = dict(self.module.named_buffers())
        tile = Tile(
            lambda parameters, state, x_NI: functional_call(
                self.module, {**parameters, **state}, (x_NI.view(-1, *self.shape),)
            ),
            dict(self.module.named_parameters()),
            state,
            self.inputs(self.dtype)[torch.arange(samples) % len(self.x_NI)],
            self.loss,
        )
        groups = {name: 0 if tensor.ndim > 1 else -1 for name, tensor in tile.parameters.items()}
        fixed = {name: tensor for name, tensor in state.items() if not tensor.is_floating_point()}
        is_regression = self.labels_N.is_floating_point()
        return tile, groups, {"has_targets": is_regression, "label_smoothing": self.smoothing, "fixed": fixed}

    def inputs(self, dtype: torch.dtype) -> Tensor:
        """Return the samples in a type of numbers, tokens as they are."""
        return self.x_NI.to(dtype) if self.x_NI.is_floating_point() else self.x_NI

    def by_autograd(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of all samples, its gradient [P], and the parameters [P] after some steps, in float64."""
        module = copy.deepcopy(self.module).to(dtype)
        parameters = [*module.parameters()]
        loss, gradients = self._gradients(module, parameters, torch.arange(len(self.x_NI)), dtype)
        momenta = [torch.zeros_like(parameter) for parameter in parameters]
        for order_B in self.order_SB:
            steps = self._gradients(module, parameters, order_B, dtype)[1]
            for parameter, momentum, step in zip(parameters, momenta, steps, strict=True):
                momentum.mul_(MOMENTUM).add_(step + (DECAY if parameter.ndim > 1 else 0) * parameter.detach())
                parameter.data.sub_(self.rate * momentum)
        return loss.double(), _flat(gradients), _flat(parameters)

    def _gradients(
        self, module: nn.Module, parameters: Sequence[Tensor], order_B: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, list[Tensor]]:
        output = module(self.inputs(dtype)[order_B].view(-1, *self.shape))
        labels, output_RK = self.labels_N[order_B], output.reshape(-1, output.shape[-1])
        if self.loss == "ce":
            loss = F.cross_entropy(output_RK, labels.flatten(), label_smoothing=self.smoothing)
        elif labels.is_floating_point():
            loss = (output_RK - labels.to(dtype)).square().sum(1).mean() / 2
        else:
            loss = (output_RK - F.one_hot(labels.flatten(), output.shape[-1])).square().sum(1).mean() / 2
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return loss.detach(), [
            torch.zeros_like(parameter) if gradient is None else gradient
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]

    def num_correct(self) -> int:
        """Count the rows whose first largest output is that of their class."""
        with torch.no_grad():
            output = self.module(self.inputs(self.dtype).view(-1, *self.shape))
        return int((output.reshape(-1, output.shape[-1]).argmax(1) == self.labels_N.flatten()).sum())


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def problem_of(case: Case, seed: int = 0, samples: int = 70, batch: int = 20, **fields: object) -> Problem:
    """Draw the parameters of a case, and samples for it."""
    torch.manual_seed(seed)
    module, shape = case.make(), SHAPES[case.form]
    if case.form == "ids":
        ids, labels = torch.randint(VOCABULARY, (2, samples, *shape))
        return Problem(case.name, module, shape, ids, labels, batch, positions=shape[0], **fields)
    x_NI, labels = torch.randn(samples, prod(shape)), torch.randint(CLASSES, (samples,))
    return Problem(case.name, module, shape, x_NI, labels, batch, **fields)


def build_together(
    tables: Sequence[StepTable], dtype: torch.dtype, folder: Path, flags: Sequence[str] = QUICK
) -> list[Library]:
    """Build one library of the kernels of several steps."""
    sources = {name: source for table in tables for name, source in table.sources().items()}
    folder.mkdir(parents=True, exist_ok=True)
    text, path = folder / "steps.cpp", folder / "steps.so"
    text.write_text("\n".join(['#include "generated.cpp"', *sources.values()]))
    number = NUMBERS[str(dtype).removeprefix("torch.")]
    command = [compiler(), *flags, f"-DNUMBER={number}", f"-I{SOURCES}", str(text), "-o", str(path)]
    subprocess.run(command, check=True, timeout=280)
    library = ctypes.CDLL(str(path))
    kernels = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in sources}
    return [TableLibrary(library, table, kernels) for table in tables]


class GeneratedStep:
    """A problem's step in a library, with memory of its own."""

    def __init__(self, problem: Problem, library: Library):
        self.problem, self.library = problem, library
        self.x_NI, self.labels_N = problem.inputs(problem.dtype).contiguous(), problem.labels_N
        if self.labels_N.is_floating_point():
            self.labels_N = self.labels_N.to(problem.dtype)
        self.theta_P = _flat([*problem.module.parameters()]).to(problem.dtype)
        buffers = [buffer.flatten() for buffer in problem.module.buffers() if buffer.is_floating_point()]
        self.state_S = torch.cat([*buffers, torch.zeros(1)]).to(problem.dtype)

    def evaluate(self, fill: int = 0) -> tuple[Tensor, int, Tensor]:
        """Return the loss of all samples, how many outputs are correct, and the gradient.

        `fill`: The byte of which the kernels' memory consists before. Of 255 it is NaN.
        """
        gradient_P, correct_1 = torch.zeros_like(self.theta_P), torch.zeros(1, dtype=torch.int64)
        is_classes = not self.labels_N.is_floating_point()
        loss_1 = self._call(
            self.library.evaluate,
            fill,
            batch=len(self.x_NI),
            gradient_TP=gradient_P.data_ptr(),
            correct_T=correct_1.data_ptr() if is_classes else None,
        )
        return loss_1[0].double(), int(correct_1), gradient_P.double()

    def steps(self, fill: int = 0) -> Tensor:
        """Return the parameters after the problem's steps."""
        before_P = self.theta_P.clone()
        self._call(
            self.library.run,
            fill,
            batch=self.problem.batch,
            num_steps=len(self.problem.order_SB),
            order=self.problem.order_SB.data_ptr(),
        )
        after_P, self.theta_P = self.theta_P, before_P
        return after_P.double()

    def _call(self, function, fill: int, **fields: object) -> Tensor:
        def numbers(*given: float) -> Tensor:
            return torch.tensor(given, dtype=self.problem.dtype)

        first_P, rate_S, ones_S = (
            torch.zeros_like(self.theta_P),
            numbers(*[self.problem.rate] * STEPS),
            numbers(*[1.0] * STEPS),
        )
        loss_1, never_1 = numbers(0.0), torch.full((1,), -1)
        decay_1, momentum_1 = numbers(DECAY), numbers(MOMENTUM)
        tensors = {"theta_TP": self.theta_P, "first_TP": first_P, "x_NI": self.x_NI, "labels_N": self.labels_N}
        tensors |= {"decay_GT": decay_1, "momentum_T": momentum_1, "rate_ST": rate_S, "correction_S": ones_S}
        tensors |= {"loss_T": loss_1, "diverged_at_T": never_1, "state_TS": self.state_S}
        call = Call(
            num_trials=1,
            num_parameters=len(self.theta_P),
            num_state=len(self.state_S),
            look_every=10,
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            **fields,
        )
        scratch = torch.full((self.library.scratch_bytes(call),), fill, dtype=torch.uint8)
        call.scratch = scratch.data_ptr()
        function(call)
        return loss_1


def fault_of(step: GeneratedStep) -> str | None:
    """Return how a step differs from autograd by more than rounding, or None.

    In float64 rounding is far below any fault. In float32 the error against float64 is compared with that of autograd.
    """
    problem = step.problem
    loss, correct, gradient_P = step.evaluate()
    theta_P = step.steps()
    if not torch.equal(step.evaluate(255)[2], gradient_P) or not torch.equal(step.steps(255), theta_P):
        return "reads memory that it has not written"
    exact, eager = problem.by_autograd(torch.float64), problem.by_autograd(problem.dtype)
    for name, found, true, near in zip(
        ("loss", "gradient", "weights"), (loss, gradient_P, theta_P), exact, eager, strict=True
    ):
        error, bound = _error(found, true), 2 * _error(near, true) + 1e-6
        if problem.dtype == torch.float64:
            bound = 1e-11
        if not error <= bound:
            return f"{name} differs by {error:.1e}, at most {bound:.1e} expected"
    if not problem.labels_N.is_floating_point() and abs(correct - problem.num_correct()) > 0:
        return f"counts {correct} correct outputs, expected {problem.num_correct()}"
    return None


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / (exact.norm() + 1e-30))
