"""Generated kernels compared with handwritten ones and with a plain PyTorch loop, in trial-steps per CPU second of a thread.

    python -m benchmarks.generated                # residual networks: handwritten and generated kernels
    python -m benchmarks.generated --modules      # modules: generated kernels and a plain loop
    python -m benchmarks.generated --jax PYTHON   # modules: generated kernels and JAX, in another environment's Python

Sides alternate, and the median ratio of the rounds is reported.
"""

import argparse
import dataclasses
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.own_networks import Net, Transformer
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.networks.network import Network
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.training.engines.generated import generated_library
from depthrate.tasks.training.engines.native import native_library
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan

SAMPLES, CLASSES = 1437, 10
SIDE_S = 2.0
Side = Callable[[], float]
"""Returns a rate."""


def plan_of(batch: int | None) -> TrainingPlan:
    """Return a plan of endless training."""
    return TrainingPlan(
        loss="ce",
        optimizer="sgd",
        schedule="constant",
        num_steps=10**7,
        batch_size=batch,
        init="normal",
        clip_norm=None,
        dtype=torch.float32,
    )


def kernels_rate(network: Network, library: Library, batch: int | None, x_NI: Tensor, labels_N: Tensor) -> float:
    """Return the largest rate of calls of two trials."""
    hyperparameters = [Hyperparameters(seed, 0.01, 0.9, {"hidden": 1e-4, "last": 1e-4}) for seed in range(2)]
    trainer = FusedTrainer(network, plan_of(batch), hyperparameters, x_NI, labels_N)
    trainer.use_native(library)
    divergence, best, end = Divergence(2, torch.device("cpu")), 0.0, time.process_time() + SIDE_S
    while time.process_time() < end:
        started, step = time.process_time(), trainer.step_count
        trainer.advance(10**7, divergence)
        best = max(best, 2 * (trainer.step_count - step) / (time.process_time() - started))
    return best


def loop_rate(module: nn.Module, batch: int | None, x_NI: Tensor, labels_N: Tensor) -> float:
    """Return the rate of a plain loop."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    steps, started = 0, time.process_time()
    while (passed := time.process_time() - started) < SIDE_S:
        rows = slice(None) if batch is None else torch.randperm(len(x_NI))[:batch]
        optimizer.zero_grad()
        F.cross_entropy(module(x_NI[rows]), labels_N[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1
    return steps / passed


def report(name: str, sides: tuple[str, str], first: Side, second: Side, rounds: int) -> None:
    """Print the rates of the round with the median ratio."""
    rates = sorted(((first(), second()) for _ in range(rounds)), key=lambda pair: pair[0] / pair[1])
    ratios = [one / other for one, other in rates]
    (one, other), low, high = rates[len(rates) // 2], min(ratios), max(ratios)
    print(
        f"{name}: {sides[0]} {one:,.0f}, {sides[1]} {other:,.0f}: {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})",
        flush=True,
    )


def generated_of(
    network: Network, batch: int | None, x_NI: Tensor, shape: tuple[int, ...]
) -> tuple[Library, DataShape]:
    """Return the kernels generated for a network."""
    data = DataShape(num_samples=len(x_NI), sample_shape=shape, num_classes=CLASSES)
    dataset: Any = SimpleNamespace(shape=data)
    return generated_library(network, plan_of(batch), dataset, lambda: False)[0], data


def compare_builtin(rounds: int) -> None:
    """Print the rates of handwritten and generated kernels of built-in networks."""
    x_NI, labels_N = torch.randn(SAMPLES, 64), torch.randint(CLASSES, (SAMPLES,))
    residual: dict[str, Any] = {"width": 64, "input_dimensions": 64, "num_classes": CLASSES, "last_bias": True}
    cases: dict[str, tuple[ResidualNetwork, int]] = {
        "rn1 8:128": (ResidualNetwork(depth=8, linear_layers=1, pre_norm=False, **residual), 128),
        "rn1 34:128": (ResidualNetwork(depth=34, linear_layers=1, pre_norm=False, **residual), 128),
        "rn2 pre-LN 8:128": (ResidualNetwork(depth=8, linear_layers=2, pre_norm=True, **residual), 128),
    }
    for name, (network, batch) in cases.items():
        kind = type(network)
        other_kind = type(kind.__name__, (kind,), {"kernels": lambda self: None})
        fields = {field.name: getattr(network, field.name) for field in dataclasses.fields(kind)}
        other: Network = other_kind(**fields)
        handwritten, _ = native_library(network, plan_of(batch), lambda: False)
        generated, _ = generated_of(other, batch, x_NI, (64,))
        report(
            name,
            ("generated", "handwritten"),
            partial(kernels_rate, other, generated, batch, x_NI, labels_N),
            partial(kernels_rate, network, handwritten, batch, x_NI, labels_N),
            rounds,
        )


class Residual(nn.Module):
    """The network of the tutorial on one's own model."""

    def __init__(self, depth: int, width: int):
        super().__init__()
        self.embed, self.head = nn.Linear(64, width), nn.Linear(width, CLASSES)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            h = norm(h + torch.relu(block(h)))
        return torch.as_tensor(self.head(h))


class Encoder(nn.Module):
    """Layers of torch's transformer over the rows of an 8x8 image."""

    def __init__(self, depth: int, width: int):
        super().__init__()
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, CLASSES)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.view(-1, 8, 8))
        for block in self.blocks:
            h = block(h)
        return torch.as_tensor(self.head(h.mean(1)))


class Convolutional(nn.Module):
    """Convolutions of 8x8 images with pooling."""

    def __init__(self, depth: int, width: int):
        super().__init__()
        first = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.blocks = nn.Sequential(*first)
        for _ in range(depth):
            self.blocks.extend([nn.Conv2d(width, width, 3, padding=1), nn.ReLU()])
        self.head = nn.Linear(16 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.blocks(x).flatten(1)))


Case = tuple[Callable[..., nn.Module], int, int, int | None]
"""Module, depth, width and batch size."""
LOOPED: tuple[Case, ...] = (
    (Residual, 8, 64, 128),
    (Residual, 3, 64, 32),
    (Residual, 8, 64, None),
    (Encoder, 2, 32, 32),
    (Convolutional, 2, 16, 128),
)
IN_JAX: tuple[Case, ...] = (
    (Net, 3, 64, 32),
    (Net, 8, 64, 128),
    (Net, 8, 64, None),
    (Transformer, 1, 32, 32),
    (Transformer, 2, 32, 32),
)


def compare_modules(rounds: int, python: str | None = None) -> None:
    """Print the rates of generated kernels of modules, and of a plain loop or, with a Python that has it, of JAX."""
    x_NI, labels_N = torch.randn(SAMPLES, 64), torch.randint(CLASSES, (SAMPLES,))
    for make, depth, width, batch in LOOPED if python is None else IN_JAX:
        data = DataShape(num_samples=SAMPLES, sample_shape=(64,), num_classes=CLASSES)
        arguments = {"depth": depth, "width": width}
        network = ModuleNetwork(make=make, name=make.__name__, arguments=arguments, data=data)
        library, _ = generated_of(network, batch, x_NI, (64,))
        if python is None:
            rival, side = "plain", partial(loop_rate, make(depth, width), batch, x_NI, labels_N)
        else:
            rival, side = "jax", partial(jax_rate, python, make.__name__, depth, width, batch)
        report(
            f"{make.__name__} {depth} x {width}, batch {batch or 'full'}",
            ("generated", rival),
            partial(kernels_rate, network, library, batch, x_NI, labels_N),
            side,
            rounds,
        )


def jax_rate(python: str, module: str, depth: int, width: int, batch: int | None) -> float:
    """Return the rate of the same network in JAX."""
    words = [python, str(Path(__file__).with_name("jax_steps.py")), module, depth, width, batch or 0]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print a row per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", action="store_true")
    parser.add_argument("--jax", metavar="PYTHON", help="Python of an environment with JAX")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.modules or given.jax:
        compare_modules(given.rounds, given.jax)
    else:
        compare_builtin(given.rounds)


if __name__ == "__main__":
    main()
