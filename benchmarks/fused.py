"""Fused packs beside one trial a process on all cores, which is what a user would do instead; ratios from one run.

    python benchmarks/fused.py                      # CPU
    python benchmarks/fused.py --device cuda        # GPU: fused against one trial after another

The plain side trains the same networks with torch.nn modules and torch.optim, as many processes at once as there are
cores (on a GPU: one process, whose trials follow each other). Both sides run the same number of training steps; the
figure is trial-steps a second, process start-up left out. Rounds alternate between the sides, so that a machine whose
speed drifts does not favour one; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One shape of trials."""

    depth: int
    rows: int
    """Samples in a step (full batch)."""
    trials: int
    """Trials in a fused pack."""
    steps: int


CPU_SETTINGS = [
    Setting(3, 32, 16, 400),
    Setting(2, 200, 3, 400),
    Setting(13, 200, 3, 100),
    Setting(8, 128, 16, 60),
    Setting(8, 512, 8, 40),
    Setting(8, 1437, 2, 40),
    Setting(34, 128, 16, 20),
]
GPU_SETTINGS = [
    Setting(8, 128, 16, 200),
    Setting(8, 128, 64, 200),
    Setting(8, 128, 256, 100),
    Setting(13, 200, 64, 100),
    Setting(8, 1437, 64, 100),
    Setting(34, 128, 64, 50),
]
WIDTH, INPUTS, CLASSES = 64, 64, 10


def main() -> None:
    """Run the settings and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _serve(arguments.worker, arguments.device)
        return
    settings = CPU_SETTINGS if arguments.device == "cpu" else GPU_SETTINGS
    processes = len(os.sched_getaffinity(0)) if arguments.device == "cpu" else 1
    print(
        f"{arguments.device}, {processes} processes a side, {arguments.rounds} rounds, width {WIDTH}, SGD momentum, full batch"
    )
    print("depth  rows  trials a pack  plain trial-steps/s  fused trial-steps/s  ratio (median, min..max)")
    sides = {name: [_Worker(name, arguments.device) for _ in range(processes)] for name in ("plain", "fused")}
    for setting in settings:
        rates: dict[str, list[float]] = {"plain": [], "fused": []}
        for round_ in range(arguments.rounds + 1):
            for name, workers in sides.items():
                rate = _rate(workers, setting)
                if round_:  # the first round warms up
                    rates[name].append(rate)
        ratios = [fused / plain for plain, fused in zip(rates["plain"], rates["fused"], strict=True)]
        plain, fused = statistics.median(rates["plain"]), statistics.median(rates["fused"])
        print(
            f"{setting.depth:5d} {setting.rows:5d} {setting.trials:14d} {plain:20.0f} {fused:20.0f}"
            f"  {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})",
            flush=True,
        )


def _rate(workers: list[_Worker], setting: Setting) -> float:
    """Return trial-steps a second of all processes together."""
    started = time.perf_counter()
    for worker in workers:
        worker.start(setting)
    trial_steps = sum(worker.finish() for worker in workers)
    return trial_steps / (time.perf_counter() - started)


class _Worker:
    """A warm process that trains one setting at a time."""

    def __init__(self, side: str, device: str):
        from depthrate.orchestrator.executors.local import WORKER_ENVIRONMENT

        command = [sys.executable, __file__, "--device", device, "--worker", side]
        environment = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, setting: Setting) -> None:
        assert self._process.stdin is not None
        print(json.dumps(setting.__dict__), file=self._process.stdin, flush=True)

    def finish(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _serve(side: str, device: str) -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for line in sys.stdin:
        setting = Setting(**json.loads(line))
        trial_steps = (_train_plain if side == "plain" else _train_fused)(setting, device)
        if device == "cuda":
            torch.cuda.synchronize()
        print(trial_steps, flush=True)


def _data(setting: Setting, device: str):  # type: ignore[no-untyped-def]
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(setting.rows, INPUTS, generator=generator)
    labels = torch.arange(setting.rows) % CLASSES
    return x.to(device), labels.to(device)


def _train_fused(setting: Setting, device: str) -> int:
    import torch

    from depthrate.tasks.networks.residual import ResidualNetwork
    from depthrate.tasks.training.plan import Hyperparameters, TrainingPlan
    from depthrate.tasks.training.trainer import FusedTrainer

    x, labels = _data(setting, device)
    network = ResidualNetwork(
        linear_layers=1, pre_norm=False, depth=setting.depth, width=WIDTH,
        input_dimensions=INPUTS, num_classes=CLASSES, last_bias=True,
    )  # fmt: skip
    plan = TrainingPlan(
        loss="ce", optimizer="sgd", schedule="constant", num_steps=setting.steps,
        batch_size=None, init="uniform", clip_norm=None, dtype=torch.float32,
    )  # fmt: skip
    trials = [Hyperparameters(seed, 0.05, 0.9, {"hidden": 0.005, "last": 0.005}) for seed in range(setting.trials)]
    trainer = FusedTrainer(network, plan, trials, x, labels)
    for _ in range(setting.steps):
        trainer.step()
    return setting.steps * setting.trials


def _train_plain(setting: Setting, device: str) -> int:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return self.norm(h + torch.relu(self.linear(h)))

    x, labels = _data(setting, device)
    trials = max(1, setting.trials // 4)  # one after another: a quarter of the pack gives the same rate sooner
    for seed in range(trials):
        torch.manual_seed(seed)
        blocks = [Block() for _ in range(setting.depth - 1)]
        first = [nn.Linear(INPUTS, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)]
        model = nn.Sequential(*first, *blocks, nn.Linear(WIDTH, CLASSES)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.005)
        for _ in range(setting.steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return setting.steps * trials


if __name__ == "__main__":
    main()
