"""Tasks with a known best, for the tests of searches."""

import math
import os
import time
from pathlib import Path

import depthrate

ASHA_SEARCH = {
    "params": {"x": [float(x) for x in range(1, 13)]},
    "objective": "nc1",
    "direction": "maximize",
    "sampler": "random",
    "trials": 12,
    "batch": 12,
    "prune": {"rule": "asha", "metric": "height", "from_step": 2, "factor": 2},
}
"""Twelve trials of `climbs`, all proposed at once; at each rung the better half goes on."""


@depthrate.task(version=1, fusible=["x", "seed"])
def bowl(*, depth: int = 1, x: float, seed: int = 0, context):
    """Lowest, at 0, where x = 1 / depth; diverges above 5."""
    return [{"metrics": [{"layer": depth, "nc1": value}]} for value in _heights(depth, x)]


def _heights(depth, x):
    return [math.nan if value > 5 else math.log(value * depth) ** 2 for value in x]


@depthrate.task(version=1)
def fragile(*, x: float, flag: str = ""):
    """Fails below 0.5 while the flag is there."""
    if x < 0.5 and Path(flag).exists():
        raise RuntimeError("cannot do it")
    return {"metrics": [{"layer": 1, "nc1": x}]}


@depthrate.task(version=1)
def climbs(*, x: float, log: str, pause_s: float = 0.0, context):
    """Reports x at steps 1, 2, 4, 8, and notes each step that it took."""
    for step in (1, 2, 4, 8):
        time.sleep(pause_s)
        with open(log, "a") as file:
            file.write(f"{x} {step} {os.getpid()}\n")
        if context.report(step, {0: {"height": x}}):
            raise depthrate.Pruned
    return {"metrics": [{"layer": 1, "nc1": x}]}
