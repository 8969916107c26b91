"""The whole command compared with a user's script: a sweep through `depthrate run`, including start-up.

    python benchmarks/command.py                           # L-RN1: 3,000 steps of batch 128, and full batches of 1,430 rows
    python benchmarks/command.py --only "batch 128" --rounds 5 --engine native --warm
    python benchmarks/command.py --only "batch 128" --parts    # where the command's processor seconds go, by cProfile
    python benchmarks/command.py --own                     # networks as users' modules, at full length: hours
    python benchmarks/command.py --own --plain-steps 1000  # the script takes 1,000 steps, and its loop is scaled
    python benchmarks/command.py --own --steps 300 --warm  # short sweeps with kernels in the cache

The script trains the same networks on the same samples with torch.optim, one trial after another in as many processes as
there are cores; it measures nothing and keeps nothing. Ours plans, trains, measures every layer at log-spaced steps, commits
and says what it did; with the defaults and a cold cache, unless an engine is named or `--warm` has what is built kept from
a round before the first. Sides alternate; medians are reported, of wall seconds and of processor seconds of all
processes. With fewer steps, the script's seconds outside its loop count once, and those of its loop in proportion.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from depthrate.storage.files.data_folder import open_data_folder
from depthrate.tasks.supervised.task import COLLAPSE, NEXT_TOKEN

NETWORKS = Path(__file__).with_name("own_networks.py")
DIGITS = {"dataset": "digits", "samples_per_class": 143}
"""1,430 samples, equally many of each class."""
TOKENS = {"dataset": "markov", "vocabulary_size": 64, "context_length": 16, "samples": 1024}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A sweep of one shape, and the module that the script trains."""

    make: str
    """Name in own_networks.py."""
    depth: int
    width: int
    steps: int
    batch: int | None
    """None: full batches."""
    trials: int = 16
    optimizer: str = "sgd"
    lr: float = 0.05
    arch: str | None = None
    """Built-in network in place of the module in our sweep."""
    has_tokens: bool = False

    def sweep(self, engine: str) -> dict[str, Any]:
        """Return our sweep."""
        own = {"arch": f"{NETWORKS}:{self.make}"}
        return {
            "name": "s",
            "task": "next_token" if self.has_tokens else "collapse",
            "params": (own if self.arch is None else {"arch": self.arch})
            | (TOKENS if self.has_tokens else DIGITS)
            | {"depth": self.depth, "width": self.width, "lr": self.lr, "steps": self.steps}
            | {"optimizer": self.optimizer, "weight_decay": 0.005, "schedule": "cosine"}
            | ({} if self.batch is None else {"batch_size": self.batch}),
            "seeds": self.trials,
            "engine": engine,
        }

    def write_samples(self, path: Path) -> None:
        """Write the samples of the sweep for the script."""
        task = NEXT_TOKEN if self.has_tokens else COLLAPSE
        data = TOKENS if self.has_tokens else DIGITS
        trial = task.read(task.schema.fill({"arch": "t11", "depth": 1, "steps": 1, **data}))
        dataset = task.load(trial, open_data_folder())
        x_NI = dataset.x_NI if self.has_tokens else dataset.x_NI.astype(np.float32)
        np.savez(path, x=x_NI.reshape(-1, *dataset.shape.sample_shape), y=dataset.labels_N)


BUILT_IN = {
    "batch 128": Part(make="Net", arch="rn1", depth=8, width=64, batch=128, steps=3000),
    "full batch": Part(make="Net", arch="rn1", depth=8, width=64, batch=None, steps=600),
}
SMALL: dict[str, Any] = {"depth": 2, "width": 32, "batch": 32, "trials": 8, "steps": 10_000}
OWN = {
    "Net 8:128": Part(make="Net", depth=8, width=64, batch=128, steps=20_000),
    "Net 8:128 adam": Part(make="Net", depth=8, width=64, batch=128, steps=20_000, optimizer="adam", lr=0.001),
    "Net full batch": Part(make="Net", depth=8, width=64, batch=None, steps=2000),
    "transformer": Part(make="Transformer", **SMALL),
    "vit": Part(make="vit", **SMALL),
    "gpt2": Part(make="gpt2", has_tokens=True, **SMALL),
    "llama": Part(make="llama", has_tokens=True, **SMALL),
}
SCRIPT = """
import importlib.util
import json
import sys
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.set_flush_denormal(True)
file, make, depth, width, samples, batch, steps, optimizer, lr, *seeds = sys.argv[1:]
spec = importlib.util.spec_from_file_location("networks", file)
networks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(networks)
data = np.load(samples)
x, labels = torch.tensor(data["x"]), torch.tensor(data["y"].astype("i8"))
batch, steps = int(batch), int(steps)
wall_s = cpu_s = 0.0

for seed in map(int, seeds):
    torch.manual_seed(seed)
    model = getattr(networks, make)(int(depth), int(width))
    if optimizer == "adam":
        update = torch.optim.Adam(model.parameters(), lr=float(lr), weight_decay=0.005)
    else:
        update = torch.optim.SGD(model.parameters(), lr=float(lr), momentum=0.9, weight_decay=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps)
    order, position = torch.randperm(len(x)), 0
    started, cpu_started = time.perf_counter(), time.process_time()
    for _ in range(steps):
        if batch < len(x):
            if position + batch > len(x):
                order, position = torch.randperm(len(x)), 0
            rows = order[position : position + batch]
            position += batch
            inputs, targets = x[rows], labels[rows]
        else:
            inputs, targets = x, labels
        update.zero_grad()
        output = model(inputs)
        output = getattr(output, "logits", output)
        nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten()).backward()
        update.step()
        schedule.step()
    wall_s += time.perf_counter() - started
    cpu_s += time.process_time() - cpu_started
print(json.dumps([wall_s, cpu_s]))
"""


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


def print_parts(part: Part, engine: str) -> None:
    """Run the command once with a cold cache under cProfile, and print the processor seconds of its parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(PROFILER)
        paths = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"PARTS": name, "PYTHONPATH": paths}
        ours(part, folder, len(os.sched_getaffinity(0)), folder / "cache", engine, **variables)
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
                item: sum(s for (file, _, name), s in cumulative.items() if file.endswith(end) and name == function)
                for item, (end, function) in PARTS.items()
                if item.startswith(kind)
            }
            for item, part_s in parts.items():
                seconds[item] += part_s
            main_s = stats.total_tt  # type: ignore[attr-defined]
            seconds[f"{kind}: rest of the main thread"] += main_s - sum(parts.values())
            seconds[f"{kind}: other threads, start and end"] += own_s - main_s
            if kind == "worker":
                seconds["worker: building kernels (child processes)"] += children_s
        total_s = sum(seconds.values())
        for item, item_s in sorted(seconds.items(), key=lambda item: -item[1]):
            print(f"{item_s:7.2f} s {item_s / total_s:6.1%}  {item}")
        print(f"{total_s:7.2f} s         all processes, the profiler's own cost included")


def plain(part: Part, samples: Path, cores: int, steps: int) -> tuple[float, float]:
    """Run the script in a process per core, and return the wall and the processor seconds of all its steps but these."""
    batch = 10**9 if part.batch is None else part.batch
    words = [NETWORKS, part.make, part.depth, part.width, samples, batch, steps, part.optimizer, part.lr]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, [*words, *range(core, part.trials, cores)])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in range(cores)
    ]
    loops = []
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0
        loops.append(json.loads(output))
    left = part.steps / steps - 1
    return left * max(wall_s for wall_s, _ in loops), left * sum(cpu_s for _, cpu_s in loops)


def ours(part: Part, folder: Path, cores: int, cache: Path, engine: str, **variables: str) -> None:
    """Run the command on a new store, with these environment variables."""
    (folder / "s.yaml").write_text(json.dumps(part.sweep(engine)))
    words = ["run", str(folder / "s.yaml"), "--store", str(folder / "store"), "--workers", str(cores)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "depthrate", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def measured(side: str, part: Part, cache: Path, engine: str, samples: Path, steps: int) -> tuple[float, float]:
    """Return the wall seconds and the processor seconds that a side takes."""
    cores, more_wall_s, more_cpu_s = len(os.sched_getaffinity(0)), 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        if side == "plain":
            more_wall_s, more_cpu_s = plain(part, samples, cores, steps)
        else:
            ours(part, Path(name), cores, cache, engine)
        wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s + more_wall_s, cpu_s + more_cpu_s


def compare(name: str, part: Part, given: argparse.Namespace, folder: Path) -> None:
    """Measure a part, and print its line."""
    samples = folder / f"{part.make}.npz"
    part.write_samples(samples)
    steps = min(given.plain_steps or part.steps, part.steps)
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": []}
    if given.warm:
        measured("ours", part, folder / name, given.engine, samples, steps)
    for number in range(given.rounds):
        for side, rows in found.items():
            cache = folder / (name if given.warm else f"{name}-{number}")
            rows.append(measured(side, part, cache, given.engine, samples, steps))
    (plain_s, plain_cpu), (ours_s, ours_cpu) = (
        [statistics.median(row[kind] for row in rows) for kind in (0, 1)] for rows in found.values()
    )
    ratios = [one[0] / other[0] for one, other in zip(*found.values(), strict=True)]
    scaled = "" if steps == part.steps else f", its loop scaled from {steps:,} steps"
    print(
        f"{name}, {part.steps:,} steps, {part.trials} trials, {'warm' if given.warm else 'cold'}: plain {plain_s:.1f} s "
        f"({plain_cpu:.1f} of processors{scaled}), ours {ours_s:.1f} s ({ours_cpu:.1f}): {plain_s / ours_s:.2f} times as fast "
        f"({min(ratios):.2f} to {max(ratios):.2f}), {plain_cpu / ours_cpu:.2f} a processor second",
        flush=True,
    )


def main() -> None:
    """Print a line per part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own", action="store_true", help="train users' modules")
    parser.add_argument("--only", choices=[*BUILT_IN, *OWN], action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--steps", type=int, help="steps per trial, instead of the part's")
    parser.add_argument("--plain-steps", type=int, help="steps that the script takes of each trial. Default: all")
    parser.add_argument("--parts", action="store_true")
    given = parser.parse_args()
    names = given.only or [*(OWN if given.own else BUILT_IN)]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            part = {**BUILT_IN, **OWN}[name]
            part = replace(part, steps=given.steps or part.steps)
            if given.parts:
                print_parts(part, given.engine)
            else:
                compare(name, part, given, Path(folder))


if __name__ == "__main__":
    main()
