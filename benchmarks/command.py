"""The whole command beside a script of one's own: 16 trials of L-RN1 through `depthrate run`, start-up and all.

    python benchmarks/command.py                       # 3,000 steps of batch 128, and full batches of 1,437 rows
    python benchmarks/command.py --batch 128 --rounds 5 --engine native --warm
    python benchmarks/command.py --batch 128 --steps 12000
    python benchmarks/command.py --own                     # the script's network as a user's module
    python benchmarks/command.py --batch 128 --parts       # where the command's processor seconds go, by cProfile

The script trains the same networks with torch.nn modules and torch.optim, one trial after another in as many processes as
there are cores; it measures nothing and keeps nothing. Ours plans, trains, measures every layer at log-spaced steps, commits
and says what it did; with the defaults and a cold cache, unless an engine is named or `--warm` has what is built kept from
a round before the first. Sides alternate; medians are reported, of wall seconds and of processor seconds of all
processes.
"""

import argparse
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
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


OWN = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, h):
        return self.norm(h + torch.relu(self.linear(h)))


class Net(nn.Sequential):
    def __init__(self, depth, width):
        first = [nn.Linear(64, width), nn.LayerNorm(width, elementwise_affine=False)]
        super().__init__(*first, *[Block(width) for _ in range(depth - 1)], nn.Linear(width, 10))
"""
"""The script's network in a user's file."""


PROFILER = """
import atexit, cProfile, json, os, resource, time

profile = cProfile.Profile(time.thread_time)
profile.enable()


@atexit.register
def write():
    profile.disable()
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    profile.dump_stats(f"{os.environ['PARTS']}/{os.getpid()}.profile")
    with open(f"{os.environ['PARTS']}/{os.getpid()}.json", "w") as file:
        json.dump([own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime], file)
"""
PARTS = {
    "worker: import torch": ("torch/__init__.py", "<module>"),
    "worker: other imports": ("orchestrator/worker/attempt_runner.py", "<module>"),
    "worker: steps": ("engines/native.py", "step"),
    "worker: loss, objective, gradient norm": ("training/trainer.py", "evaluate"),
    "worker: layer metrics": ("training/training_pack.py", "_measure"),
    "worker: checkpoints": ("training/training_pack.py", "_report_progress"),
    "worker: commit": ("worker/attempt_runner.py", "_commit_when_not_full"),
    "driver: imports": ("cli/app.py", "resolve_command"),
    "driver: plan": ("api/planning.py", "check_launch"),
    "driver: loop": ("launch/driver.py", "run"),
}
"""Part -> file and function whose processor seconds it sums, callees included."""


def print_parts(batch: int, engine: str, own_network: str) -> None:
    """Run the command once with a cold cache under cProfile, and print the processor seconds of its parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(PROFILER)
        paths = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"OWN": own_network, "PARTS": name, "PYTHONPATH": paths}
        ours(batch, folder, len(os.sched_getaffinity(0)), folder / "cache", engine, **variables)
        seconds: dict[str, float] = defaultdict(float)
        for path in folder.glob("*.json"):
            own_s, children_s = json.loads(path.read_text())
            stats = pstats.Stats(str(path.with_suffix(".profile")))
            cumulative = {key: row[3] for key, row in stats.stats.items()}  # type: ignore[attr-defined]
            is_worker = any(file.endswith("worker/attempt_runner.py") for file, *_ in cumulative)
            kind = (
                "worker"
                if is_worker
                else "driver"
                if any("launch/driver.py" in key[0] for key in cumulative)
                else "other"
            )
            parts = {
                part: sum(s for (file, _, name), s in cumulative.items() if file.endswith(end) and name == function)
                for part, (end, function) in PARTS.items()
                if part.startswith(kind)
            }
            for part, part_s in parts.items():
                seconds[part] += part_s
            main_s = stats.total_tt  # type: ignore[attr-defined]
            seconds[f"{kind}: rest of the main thread"] += main_s - sum(parts.values())
            seconds[f"{kind}: other threads, start and end"] += own_s - main_s
            if kind == "worker":
                seconds["worker: building kernels (child processes)"] += children_s
        total_s = sum(seconds.values())
        for part, part_s in sorted(seconds.items(), key=lambda item: -item[1]):
            print(f"{part_s:7.2f} s {part_s / total_s:6.1%}  {part}")
        print(f"{total_s:7.2f} s         all processes, the profiler's own cost included")


def plain(batch: int, cores: int) -> None:
    """Run the script in a process a core."""
    seeds = [[str(seed) for seed in range(core, TRIALS, cores)] for core in range(cores)]
    words = [[sys.executable, "-c", SCRIPT, str(DIGITS), str(batch), str(STEPS[batch]), *seed] for seed in seeds]
    for process in [subprocess.Popen(word, env={**os.environ, "OMP_NUM_THREADS": "1"}) for word in words]:
        assert process.wait() == 0


def ours(batch: int, folder: Path, cores: int, cache: Path, engine: str, **variables: str) -> None:
    """Run the command on a new store, with these environment variables."""
    full, own = batch >= 1437, variables.pop("OWN", "")
    (folder / "net.py").write_text(OWN)
    sweep = {
        "name": "s",
        "task": "collapse",
        # 143 samples of each of ten classes: as many rows as the script's, but for seven
        "params": ({"arch": "./net.py:Net", "flat_inputs": True} if own else {"arch": "rn1"})
        | {"depth": DEPTH, "width": WIDTH, "samples_per_class": 143, "lr": 0.05, "steps": STEPS[batch]}
        | ({} if full else {"batch_size": batch}),
        "seeds": TRIALS,
        "engine": engine,
    }  # fmt: skip
    (folder / "s.yaml").write_text(json.dumps(sweep))
    words = ["run", str(folder / "s.yaml"), "--store", str(folder / "store"), "--workers", str(cores)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "depthrate", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def measured(side: str, batch: int, cache: Path, engine: str, own: str) -> tuple[float, float]:
    """Return the wall seconds and the processor seconds that a side takes."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        if side == "plain":
            plain(batch, cores)
        else:
            ours(batch, Path(name), cores, cache, engine, OWN=own)
        wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a row a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, choices=STEPS, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--steps", type=int, help="in place of 3,000 and 600")
    parser.add_argument("--own", action="store_const", const="own", default="", help="train a user's module")
    parser.add_argument("--parts", action="store_true")
    given = parser.parse_args()
    if given.steps:
        STEPS.update(dict.fromkeys(STEPS, given.steps))
    if given.parts:
        for batch in given.batch or STEPS:
            print_parts(batch, given.engine, given.own)
        return
    with tempfile.TemporaryDirectory() as kept:
        for batch in given.batch or STEPS:
            found: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": []}
            if given.warm:
                measured("ours", batch, Path(kept), given.engine, given.own)
            for number in range(given.rounds):
                for side, rows in found.items():
                    cache = Path(kept) if given.warm else Path(kept) / f"{batch}-{number}"
                    rows.append(measured(side, batch, cache, given.engine, given.own))
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
