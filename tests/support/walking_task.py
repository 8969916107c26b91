"""A task without torch whose result depends on every one of its steps: what is left out, or done twice, shows."""

from __future__ import annotations

import json
import time
from typing import Any

import depthrate


@depthrate.task(version=1)
def walk(*, depth: int, steps: int = 40, step_s: float = 0.02, seed: int = 0, context: Any) -> Any:
    """Step through a generator of numbers, saving where it is when asked or due."""
    begin = {"step": 0, "value": depth + 1000 * seed, "curve": []}
    at = json.loads(context.load_checkpoint() or json.dumps(begin))
    while at["step"] < steps:
        if context.should_stop() or context.checkpoint_due():
            context.save_checkpoint(json.dumps(at).encode())
        if context.should_stop():
            raise depthrate.Interrupted
        time.sleep(step_s)
        at["value"] = (at["value"] * 6364136223846793005 + 1442695040888963407) % 2**64
        at["step"] += 1
        if at["step"] % 10 == 0:
            at["curve"].append({"step": at["step"], "loss": at["value"] / 2**64})
        context.progress(at["step"], steps)
    return {"metrics": [{"layer": depth, "nc1": at["value"] / 2**64}], "curves": at["curve"]}
