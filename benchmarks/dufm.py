"""The DUFM of Figure 2 fused, beside one trial a process on all cores by autograd, which is what a user would do instead.

    python benchmarks/dufm.py

L = 4, K = 10, n = 50, width 30, float32. The figure is trial-steps a second on the whole machine: the fused side is one
process with one thread, times the cores that could each run such a pack; the plain side as many processes at once as there
are cores, each a torch.nn.Sequential with torch.optim.SGD. Start-up is left out; rounds alternate, medians are reported.
CPU seconds are counted, not wall time, so that other work on the machine does not change the ratio much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WIDTH, CLASSES, SAMPLES, DEPTH, LR, DECAY = 30, 10, 50, 4, 0.5, 0.004


def main() -> None:
    """Print a row a size of pack: trial-steps a CPU second, fused and plain, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--side", choices=("fused", "plain"))
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 100])
    arguments = parser.parse_args()
    if arguments.side is not None:
        steps = arguments.steps
        print(json.dumps(_fused(arguments.trials[0], steps) if arguments.side == "fused" else _plain(steps)))
        return
    cores = os.cpu_count() or 1
    for trials in arguments.trials:
        fused, plain = [], []
        for _ in range(arguments.rounds):
            steps = max(20, arguments.steps * 10 // trials)
            fused.append(_measured(1, "--side", "fused", "--trials", str(trials), "--steps", str(steps)))
            plain.append(_measured(cores, "--side", "plain", "--steps", str(arguments.steps)))
        rates = statistics.median(fused) * cores, statistics.median(plain) * cores
        row = {"trials": trials, "fused_per_s": round(rates[0]), "plain_per_s": round(rates[1])}
        print(json.dumps(row | {"ratio": round(rates[0] / rates[1], 2)}))


def _measured(processes: int, *arguments: str) -> float:
    """Return the mean trial-steps a CPU second of so many processes at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(processes)]
    return statistics.mean(float(each.communicate()[0]) for each in running)


def _fused(trials: int, steps: int) -> float:
    import torch

    from depthrate.tasks.dufm.pack import training
    from depthrate.tasks.dufm.task import DUFM

    torch.set_num_threads(1)
    shape = {"depth": DEPTH, "num_classes": CLASSES, "samples_per_class": SAMPLES, "width": WIDTH}
    params = [DUFM.schema.fill({**shape, "weight_decay": DECAY, "lr": LR, "seed": seed}) for seed in range(trials)]
    size = DUFM.max_pack_size(params[0], "cpu")  # more trials than fit into the caches run as several packs
    seconds = 0.0
    for start in range(0, trials, size):
        read = [DUFM.read(parameter) for parameter in params[start : start + size]]
        trainer = training(read, DUFM.network(read[0], DUFM.data_shape(read[0]))).begin()
        for _ in range(5):
            trainer.step()
        begun = time.process_time()
        for _ in range(steps):
            trainer.step()
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
