"""The DUFM of Figure 2 fused, beside one trial a process on all cores by autograd, which is what a user would do instead.

    python benchmarks/dufm.py

L = 4, K = 10, n = 50, width 30, float32. The figure is trial-steps a second on the whole machine: the fused side is one
process with one thread, times the cores that could each run such a pack; the plain side as many processes at once as there
are cores, each a torch.nn.Sequential with torch.optim.SGD. Start-up is left out; rounds alternate, medians are reported.
CPU seconds are counted, not wall time, so that other work on the machine does not change the ratio much.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WIDTH, CLASSES, SAMPLES, DEPTH, LR, DECAY = 30, 10, 50, 4, 0.5, 0.004


def main() -> None:
    """Print a row a size of pack: trial-steps a CPU second of plain PyTorch and of packs, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--side", choices=("fused", "native", "plain"))
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 100])
    arguments = parser.parse_args()
    if arguments.side is not None:
        steps = arguments.steps
        print(
            json.dumps(
                _plain(steps) if arguments.side == "plain" else _packs(arguments.side, arguments.trials[0], steps)
            )
        )
        return
    cores = os.cpu_count() or 1
    for trials in arguments.trials:
        rates: dict[str, list[float]] = {"plain": [], "fused": [], "native": []}
        for _ in range(arguments.rounds):
            steps = max(20, arguments.steps * 10 // trials)
            rates["plain"].append(_measured(cores, "--side", "plain", "--steps", str(arguments.steps)))
            for side, times in (("fused", 1), ("native", 3)):
                given = ("--trials", str(trials), "--steps", str(times * steps))
                rates[side].append(_measured(1, "--side", side, *given))
        row: dict[str, float] = {"trials": trials}
        for side, found in rates.items():
            ratios = [one / plain for one, plain in zip(found, rates["plain"], strict=True)]
            row |= {
                f"{side}_per_s": round(statistics.median(found) * cores),
                f"{side}_ratio": round(statistics.median(ratios), 2),
            }
        print(json.dumps(row))


def _measured(processes: int, *arguments: str) -> float:
    """Return the mean trial-steps a CPU second of so many processes at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(processes)]
    return statistics.mean(float(item.communicate()[0]) for item in running)


def _packs(side: str, trials: int, steps: int) -> float:
    import torch

    from depthrate.tasks.papers.unconstrained.deep_training import training
    from depthrate.tasks.papers.unconstrained.task import DUFM
    from depthrate.tasks.training.pack_state import Divergence
    from depthrate.tasks.training.trainer import FusedTrainer

    torch.set_num_threads(1)
    shape = {"depth": DEPTH, "num_classes": CLASSES, "samples_per_class": SAMPLES, "width": WIDTH}
    params = [DUFM.schema.fill({**shape, "weight_decay": DECAY, "lr": LR, "seed": seed}) for seed in range(trials)]
    size = DUFM.max_pack_size(params[0], "cpu")  # more trials than fit into the caches run as several packs
    seconds = 0.0
    for start in range(0, trials, size):
        read = [DUFM.read(parameter) for parameter in params[start : start + size]]
        pack = training(read, DUFM.network(read[0], DUFM.data_shape(read[0])))
        trainer = pack.begin()
        if side == "native":
            trainer.use_native(pack.native_library(lambda: False)[0])
        divergence = Divergence(trainer.num_trials, trainer.device)

        def advance(until: int, trainer: FusedTrainer = trainer, divergence: Divergence = divergence) -> None:
            while trainer.step_count < until:
                trainer.advance(until, divergence)

        advance(5)
        begun = time.process_time()
        advance(5 + steps)
        seconds += time.process_time() - begun
    return trials * steps / seconds


def _plain(steps: int) -> float:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers: list[nn.Module] = []
    for _ in range(DEPTH - 1):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES, bias=False))
    features = nn.Parameter(torch.randn(CLASSES * SAMPLES, WIDTH))
    optimizer = torch.optim.SGD([features, *network.parameters()], lr=LR, weight_decay=DECAY)
    targets = torch.eye(CLASSES).repeat_interleave(SAMPLES, 0)

    def step() -> None:
        optimizer.zero_grad()
        loss = (network(features) - targets).square().sum() / (2 * len(targets))
        loss.backward()
        optimizer.step()

    for _ in range(5):
        step()
    begun = time.process_time()
    for _ in range(steps):
        step()
    return steps / (time.process_time() - begun)


if __name__ == "__main__":
    main()
