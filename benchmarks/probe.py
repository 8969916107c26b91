"""`depthrate.probe` beside the loop that one writes by hand: hooks on every block, one pass, and NC1 in numpy.

    python benchmarks/probe.py [--samples 10000] [--width 256] [--depth 8] [--rounds 5]

The loop keeps the features of each block and computes tr(Sigma_W) / tr(Sigma_B) alone; probe computes all measurements of the
task `collapse`. Sides alternate; medians of processor seconds. Both NC1 are compared. LOG.md has what was measured.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import depthrate

CLASSES, BATCH = 10, 1000


class Net(nn.Module):
    """Residual blocks, as anybody writes them."""

    def __init__(self, depth: int, width: int):
        super().__init__()
        self.first = nn.Linear(784, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        out: Tensor = self.head(x)
        return out


def hooked(model: Net, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the features of each block, collected by hooks."""
    kept: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: kept.setdefault(name, []).append(output)

    handles = [item.register_forward_hook(keep(f"blocks.{n}")) for n, item in enumerate(model.blocks)]
    model.eval()
    with torch.no_grad():
        for start in range(0, len(x), BATCH):
            model(x[start : start + BATCH])
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in kept.items()}


def nc1(features: np.ndarray, labels: np.ndarray) -> float:
    """Return tr(Sigma_W) / tr(Sigma_B)."""
    means = np.stack([features[labels == k].mean(0) for k in range(CLASSES)])
    within = np.square(features - means[labels]).sum() / len(features)
    return float(within / np.square(means - means.mean(0)).sum(1).mean())


def by_hand(model: Net, x: Tensor, y: Tensor) -> list[float]:
    """Return NC1 of each block."""
    labels = y.numpy()
    return [nc1(found.numpy().astype(np.float64), labels) for found in hooked(model, x, y).values()]


def main() -> None:
    """Compare the sides and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("samples", 10_000), ("width", 256), ("depth", 8), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net(given.depth, given.width)
    x, y = torch.randn(given.samples, 784), torch.arange(given.samples) % CLASSES
    x += y[:, None] / 10
    sides: dict[str, Callable[[], Any]] = {
        "hooks alone": lambda: hooked(model, x, y),
        "hooks and NC1 by hand": lambda: by_hand(model, x, y),
        "probe": lambda: depthrate.probe(model, (x, y), layers="blocks.*"),
    }
    rows = sides["probe"]()
    ours = [row["nc1"] for row in rows if row["name"].startswith("blocks.")]
    apart = max(abs(a / b - 1) for a, b in zip(ours, sides["hooks and NC1 by hand"](), strict=True))
    print(f"{given.samples} samples, width {given.width}, {given.depth} blocks; NC1 differs by {apart:.1e} at most")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(given.rounds):
        for name, act in sides.items():
            began = time.process_time()
            act()
            seconds[name].append(time.process_time() - began)
    for name, found in seconds.items():
        print(f"{name:22} {statistics.median(found):7.3f} cpu s ({min(found):.3f}..{max(found):.3f})")
    measured = sum(isinstance(value, float) for row in rows for value in row.values())
    print(f"probe gave {measured} numbers of {len(rows)} layers, the loop {len(ours)}")


if __name__ == "__main__":
    main()
