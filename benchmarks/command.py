"""The whole command beside a script of one's own: 16 trials of L-RN1 through `depthrate run`, start-up and all.

    python benchmarks/command.py                       # 3,000 steps of batch 128, and full batches of 1,437 rows
    python benchmarks/command.py --batch 128 --rounds 5 --engine compiled --warm

The script trains the same networks with torch.nn modules and torch.optim, one trial after another in as many processes as
there are cores; it measures nothing and keeps nothing. Ours plans, trains, measures every layer at log-spaced steps, commits
and says what it did; with the defaults and a cold cache, unless an engine is named or `--warm` has what is built or compiled
kept from a round before the first. Sides alternate; medians are reported, of wall seconds and of processor seconds of all
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIALS, DEPTH, WIDTH = 16, 8, 64
STEPS = {128: 3000, 1437: 600}
"""Batch -> steps; a batch of 1,437 is the whole training set, as in the trials of a full batch."""
DIGITS = Path(__file__).parents[1] / "tasks/data/digits.npz"
SCRIPT = """
import sys
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.set_flush_denormal(True)
digits = np.load(sys.argv[1])
batch, steps, *seeds = map(int, sys.argv[2:])
x, labels = (torch.tensor(digits[name].astype(kind)) for name, kind in (("images_NI", "f8"), ("labels_N", "i8")))
x, labels = x.float()[:1437], labels[:1437]
x = (x - x.mean()) / x.std()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64, elementwise_affine=False)

    def forward(self, h):
        return self.norm(h + torch.relu(self.linear(h)))


for seed in seeds:
    torch.manual_seed(seed)
    first = [nn.Linear(64, 64), nn.LayerNorm(64, elementwise_affine=False)]
    model = nn.Sequential(*first, *[Block() for _ in range(7)], nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order, position = torch.randperm(len(x)), 0
    for _ in range(steps):
        if batch < len(x):
            if position + batch > len(x):
                order, position = torch.randperm(len(x)), 0
            rows = order[position : position + batch]
            position += batch
            inputs, targets = x[rows], labels[rows]
        else:
            inputs, targets = x, labels
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
"""


def plain(batch: int, folder: Path, cores: int, cache: Path, engine: str) -> None:
    """Run the script in a process a core."""
    seeds = [[str(seed) for seed in range(core, TRIALS, cores)] for core in range(cores)]
    words = [[sys.executable, "-c", SCRIPT, str(DIGITS), str(batch), str(STEPS[batch]), *seed] for seed in seeds]
    for process in [subprocess.Popen(word, env={**os.environ, "OMP_NUM_THREADS": "1"}) for word in words]:
        assert process.wait() == 0


def ours(batch: int, folder: Path, cores: int, cache: Path, engine: str) -> None:
    """Run the command on a new store."""
    full = batch >= 1437
    sweep = {
        "name": "s",
        "task": "collapse",
        # 143 samples of each of ten classes: as many rows as the script's, but for seven
        "params": {"arch": "rn1", "depth": DEPTH, "width": WIDTH, "samples_per_class": 143, "lr": 0.05, "steps": STEPS[batch]}
        | ({} if full else {"batch_size": batch}),
        "seeds": TRIALS,
        "engine": engine,
    }  # fmt: skip
    (folder / "s.yaml").write_text(json.dumps(sweep))
    words = ["run", str(folder / "s.yaml"), "--store", str(folder / "store"), "--workers", str(cores)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "depthrate", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def measured(side: str, batch: int, cache: Path, engine: str) -> tuple[float, float]:
    """Return the wall seconds and the processor seconds that a side takes."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        {"plain": plain, "ours": ours}[side](batch, Path(name), cores, cache, engine)
        wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a row a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, choices=STEPS, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        for batch in given.batch or STEPS:
            found: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": []}
            if given.warm:
                measured("ours", batch, Path(kept), given.engine)
            for number in range(given.rounds):
                for side, rows in found.items():
                    cache = Path(kept) if given.warm else Path(kept) / f"{batch}-{number}"
                    rows.append(measured(side, batch, cache, given.engine))
            (plain_s, plain_cpu), (ours_s, ours_cpu) = (
                [statistics.median(row[kind] for row in rows) for kind in (0, 1)] for rows in found.values()
            )
            print(
                f"batch {batch}, {STEPS[batch]} steps, {TRIALS} trials: plain {plain_s:.1f} s ({plain_cpu:.1f} of processors), "
                f"ours {ours_s:.1f} s ({ours_cpu:.1f}): {plain_s / ours_s:.2f} times as fast, {plain_cpu / ours_cpu:.2f} a "
                "processor second",
                flush=True,
            )


if __name__ == "__main__":
    main()
