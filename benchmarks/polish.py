"""Polish of a fused pack beside one trial a process with torch.optim.LBFGS, which is what a user would write; from one run.

    python benchmarks/polish.py

Both sides minimise the smoothed objective of the same L-RN1 networks in float64, remember 20 pairs and search each line;
as many processes at once as there are cores, one thread each. Both are given the same number of evaluations of a trial's
objective and gradient, so that trials an hour are in the ratio of trial-evaluations a second; where they end is printed too.
Seconds are those of the processor, so that others on the machine count for less. Process start-up is left out.
Rounds alternate between the sides; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Setting:
    """One shape of trials."""

    depth: int
    rows: int
    trials: int
    """In a fused pack; the plain side takes as many, one after another."""
    evaluations: int


SETTINGS = [Setting(2, 200, 8, 100), Setting(5, 200, 8, 60), Setting(13, 200, 8, 30), Setting(5, 200, 2, 60)]
WIDTH, INPUTS, CLASSES, DECAY, SMOOTHING, MEMORY = 64, 64, 10, 0.005, 0.1, 20


def main() -> None:
    """Run the settings and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, help="of the settings, only those of this depth")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _serve(arguments.worker)
        return
    processes = len(os.sched_getaffinity(0))
    print(f"{processes} processes a side, {arguments.rounds} rounds, width {WIDTH}, float64, {MEMORY} pairs")
    print(
        "depth  rows  trials  plain evaluations/s  fused evaluations/s  ratio (median, min..max)  objective plain, fused"
    )
    sides = {name: [_start(name) for _ in range(processes)] for name in ("plain", "fused")}
    for setting in SETTINGS:
        if arguments.depth not in (None, setting.depth):
            continue
        rates: dict[str, list[float]] = {"plain": [], "fused": []}
        ends: dict[str, float] = {}
        for round_ in range(arguments.rounds + 1):
            for name, workers in sides.items():
                rate, ends[name] = _round(workers, setting)
                if round_:  # the first round warms up
                    rates[name].append(rate)
        ratios = [fused / plain for plain, fused in zip(rates["plain"], rates["fused"], strict=True)]
        plain, fused = statistics.median(rates["plain"]), statistics.median(rates["fused"])
        print(
            f"{setting.depth:5d} {setting.rows:5d} {setting.trials:7d} {plain:20.0f} {fused:20.0f}"
            f"  {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
            f"  {ends['plain']:.4f}, {ends['fused']:.4f}",
            flush=True,
        )
    for worker in (worker for workers in sides.values() for worker in workers):
        worker.communicate()  # closes its input, which ends it


def _start(side: str) -> subprocess.Popen[str]:
    from depthrate.orchestrator.executors.local import WORKER_ENVIRONMENT

    environment = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, "--worker", side]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _round(workers: list[subprocess.Popen[str]], setting: Setting) -> tuple[float, float]:
    """Return evaluations a processor second of all processes together, and the mean objective at the end."""
    for worker in workers:
        assert worker.stdin is not None
        print(json.dumps(asdict(setting)), file=worker.stdin, flush=True)
    answers = [json.loads(worker.stdout.readline()) for worker in workers if worker.stdout is not None]
    rate = len(answers) * sum(count for count, _, _ in answers) / sum(took for _, _, took in answers)
    return rate, statistics.mean(objective for _, objective, _ in answers)


def _serve(side: str) -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for line in sys.stdin:
        started = time.process_time()
        answer = (_polish_plain if side == "plain" else _polish_fused)(Setting(**json.loads(line)))
        print(json.dumps([*answer, time.process_time() - started]), flush=True)


def _data(setting: Setting):  # type: ignore[no-untyped-def]
    import torch

    labels = torch.arange(setting.rows) % CLASSES
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(CLASSES, INPUTS, generator=generator, dtype=torch.float64)
    noise = torch.randn(setting.rows, INPUTS, generator=generator, dtype=torch.float64)
    return means[labels] + 0.5 * noise, labels


def _polish_fused(setting: Setting) -> tuple[int, float]:
    import torch

    from depthrate.tasks.networks.residual import ResidualNetwork
    from depthrate.tasks.training.polish.polisher import Polisher
    from depthrate.tasks.training.trainer import FusedTrainer
    from depthrate.tasks.training.training_plan import Hyperparameters, PolishPlan, TrainingPlan

    x, labels = _data(setting)
    network = ResidualNetwork(
        linear_layers=1, pre_norm=False, depth=setting.depth, width=WIDTH,
        input_dimensions=INPUTS, num_classes=CLASSES, last_bias=True,
    )  # fmt: skip
    plan = TrainingPlan(
        loss="ce", optimizer="sgd", schedule="constant", num_steps=1,
        batch_size=None, init="uniform", clip_norm=None, dtype=torch.float64,
    )  # fmt: skip
    trials = [Hyperparameters(seed, 0.1, 0.9, {"hidden": DECAY, "last": DECAY}) for seed in range(setting.trials)]
    polish = PolishPlan(
        num_evaluations=setting.evaluations, tolerance=0, smoothing=(SMOOTHING,), memory=MEMORY, barrier=0
    )
    trainer = FusedTrainer(network, plan, trials, x, labels)
    polisher = Polisher(polish, trainer)
    while polisher.active:
        polisher.step()
    trainer.theta_TP = polisher.theta_TP
    return setting.evaluations * setting.trials, float(trainer.evaluate()["objective"].mean())


def _polish_plain(setting: Setting) -> tuple[int, float]:
    import torch
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

        def forward(self, h: Tensor) -> Tensor:
            z = self.linear(h)
            inner = z.clamp(-SMOOTHING, SMOOTHING)
            return self.norm(h + (inner + SMOOTHING).square() / (4 * SMOOTHING) + torch.relu(z - SMOOTHING))

    x, labels = _data(setting)
    count, objectives = 0, []
    for seed in range(setting.trials):
        torch.manual_seed(seed)
        first = [nn.Linear(INPUTS, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)]
        blocks = [Block() for _ in range(setting.depth - 1)]
        last = nn.Linear(WIDTH, CLASSES)
        model = nn.Sequential(*first, *blocks, last).double()
        decayed: list[Tensor] = [*(block.linear.weight for block in blocks), last.weight]
        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=setting.evaluations, max_eval=setting.evaluations, history_size=MEMORY,
            tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def objective(model: nn.Module = model, decayed: list[Tensor] = decayed) -> Tensor:
            penalty = sum((weight.square().sum() for weight in decayed), start=x.new_zeros(()))
            return nn.functional.cross_entropy(model(x), labels) + DECAY / 2 * penalty

        def closure(optimizer: torch.optim.LBFGS = optimizer, objective=objective) -> float:  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            optimizer.zero_grad()
            value = objective()
            value.backward()
            return float(value.detach())

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        objectives.append(float(objective().detach()))
    return count, statistics.mean(objectives)


if __name__ == "__main__":
    main()
