"""A sweep of many short trials through the command line, from nothing to its fits: plan, run, commit, fit.

    python benchmarks/thousand_trials.py [--trials 1000] [--ms 10] [--workers 2] [--one-a-pack]

The task computes for so many milliseconds of processor time a trial. As it comes, its trials run in turn, in packs that
the plan cuts; with --one-a-pack every trial has a shape of its own and is a pack. Goal: 1,000 trials of 10 ms below 30 s
on two cores. Prints wall seconds, processor seconds of all processes, and how many attempts there were.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from depthrate.orchestrator.analysis.open_results import open_results

TASK = """
import time

import depthrate


def _compute(depth, ms):
    value, until = depth ** -0.5, time.process_time() + ms / 1000
    while time.process_time() < until:
        value = value * 1.0000001
    return {"metrics": [{"layer": depth, "nc1": value}], "curves": [{"step": 1, "loss": value}]}


@depthrate.task(version=1)
def in_turn(*, depth: int, ms: float, seed: int = 0):
    return _compute(depth, ms)


@depthrate.task(version=1, fusible=["seed"])
def one_a_pack(*, depth: int, ms: float, seed: int = 0):
    return [_compute(depth, ms) for _ in seed]
"""
SWEEP = """
name: thousand
task: ./short.py:{task}
params: {{ms: {ms}}}
{axes}
fit:
  - {{metric: nc1, x: depth}}
"""


def axes_of(trials: int, one_a_pack: bool) -> str:
    """Return the axes of a sweep: depths alone, or some depths with many seeds."""
    if one_a_pack:
        return f"grid: {{depth: {list(range(2, trials + 2))}}}"
    depths = 10 if trials % 10 == 0 else 1
    return f"grid: {{depth: {list(range(2, depths + 2))}}}\nseeds: {trials // depths}"


def main() -> None:
    """Run it and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--ms", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one-a-pack", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), f"{name}/store"
        (folder / "short.py").write_text(TASK)
        task = "one_a_pack" if given.one_a_pack else "in_turn"
        axes = axes_of(given.trials, given.one_a_pack)
        (folder / "sweep.yaml").write_text(SWEEP.format(task=task, ms=given.ms, axes=axes))
        command = [sys.executable, "-m", "depthrate", "run", str(folder / "sweep.yaml"), "--store", store]
        before, started = os.times(), time.perf_counter()
        subprocess.run([*command, "--workers", str(given.workers)], check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.perf_counter() - started, os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        results = open_results(store)
        counts = [
            results.sql(f"select count(*) from {view}").fetchall()[0][0] for view in ("trials", "attempts", "fits")
        ]
    assert counts[0] == given.trials and counts[2], counts
    what = f"{task}: {given.trials} trials of {given.ms:g} ms, {given.workers} workers"
    print(f"{what}: {seconds:.1f} s, {cpu_s:.1f} s of processor time, {counts[1]} attempts")


if __name__ == "__main__":
    main()
