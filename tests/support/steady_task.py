"""A task whose work can be counted: each step leaves a line behind."""

from __future__ import annotations

import os
import time
from typing import Any

import depthrate


@depthrate.task(version=1)
def steady(
    *, depth: int, trace: str, steps: int = 20, step_s: float = 0.1, hold: str = "", seed: int = 0, context: Any
) -> Any:
    """Sleep through the steps, saving a checkpoint when asked or due; do not end while the file `hold` is there."""
    for step in range(int(context.load_checkpoint() or b"0"), steps):
        if context.should_stop() or context.checkpoint_due():
            context.save_checkpoint(str(step).encode())
        if context.should_stop():
            raise depthrate.Interrupted
        time.sleep(step_s)
        with open(trace, "a") as file:
            file.write(f"{depth} {seed} {step} {os.environ.get('SLURMD_NODENAME')}\n")
        context.progress(step + 1, steps)
    while hold and os.path.exists(hold):
        time.sleep(0.1)
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}


@depthrate.task(version=1, fusible=["seed"])
def hungry(*, depth: int, gb_each: float = 0.4, seed: int = 0, context: Any) -> Any:
    """Need memory in proportion to the pack."""
    seeds: Any = seed  # a fused task gets a list
    held = bytearray(int(gb_each * 1e9) * len(seeds))
    held[::4096] = b"x" * len(held[::4096])  # touch every page
    time.sleep(6)  # long enough for a look at it
    return [{"metrics": [{"layer": depth, "nc1": float(len(held) > 0)}]} for _ in seeds]


@depthrate.task(version=1)
def cursed(*, depth: int, context: Any) -> Any:
    """Fail at depth 3."""
    if depth == 3:
        raise RuntimeError("depth 3 is cursed")
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


@depthrate.task(version=1)
def stubborn(*, depth: int, seconds: float = 600.0, context: Any) -> Any:
    """Take longer than any job here, save nothing, and never ask whether to stop."""
    time.sleep(seconds)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}
