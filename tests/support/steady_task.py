"""A task whose work can be counted: each step leaves a line behind."""

import json
import os
import time
from pathlib import Path
from typing import Any

import depthrate

LONGEST_WAIT_S = 60.0


@depthrate.task(version=1)
def steady(*, depth: int, trace: str, steps: int = 20, step_s: float = 0.1, hold: str = "", seed: int = 0, context):
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
        if context.should_stop():
            context.save_checkpoint(str(steps).encode())
            raise depthrate.Interrupted
        time.sleep(0.1)
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}


@depthrate.task(version=1)
def curved(*, depth: int, hold: str, steps: int = 100, context: Any) -> Any:
    """Show a loss that falls, and do not end while the file `hold` is there."""
    rows: list[dict[str, float]] = []
    context.show_curves({context.trial_ids[0]: rows})
    for step in range(steps):
        rows.append({"step": step, "loss": 1 / (depth + step)})
        time.sleep(0.02)
    while os.path.exists(hold):
        if context.should_stop():
            raise depthrate.Interrupted
        time.sleep(0.1)
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}], "curves": rows}


@depthrate.task(version=1)
def slowed(
    *, depth: int, node: str, factor: float, steps: int = 25, step_s: float = 0.1, seed: int = 0, context: Any
) -> Any:
    """Take longer per step on one node of the cluster."""
    for step in range(steps):
        time.sleep(step_s * (factor if os.environ.get("SLURMD_NODENAME") == node else 1.0))
        context.progress(step + 1, steps)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


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


@depthrate.task(version=1)
def looks_around(*, depth: int, trace: str, seconds: float = 2, file: str = "", company: int = 1, context: Any) -> Any:
    """Note what a job gives its processes, and read a file of the data folder.

    With company it stays until so many have begun on its GPU: a busy machine starts one long before the next.
    """
    began = time.time()
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "TMPDIR", "SLURM_JOB_ID", "APPTAINER_CONTAINER")
    seen: dict[str, Any] = {name: os.environ.get(name) for name in names}
    seen["has_pipe"] = os.path.exists(os.path.join(seen["CUDA_MPS_PIPE_DIRECTORY"] or "/nowhere", "control"))
    if file:
        seen["content"] = context.data.read(file).decode()
    if os.environ.get("AWS_ENDPOINT_URL"):
        import botocore.session

        seen["key"] = botocore.session.get_session().get_credentials().access_key
    with open(os.path.join(seen["TMPDIR"] or "/tmp", f"left-by-{os.getpid()}"), "w") as scratch:
        scratch.write("x")
    time.sleep(seconds)
    _wait_for_company(f"{trace}.begun", f"{seen['SLURM_JOB_ID']} {seen['CUDA_VISIBLE_DEVICES']}", company)
    with open(trace, "a") as lines:
        lines.write(json.dumps({**seen, "began": began, "ended": time.time(), "device": context.device}) + "\n")
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


def _wait_for_company(path: str, place: str, company: int) -> None:
    with open(path, "a") as lines:
        lines.write(f"{place}\n")
    until = time.time() + LONGEST_WAIT_S
    while Path(path).read_text().splitlines().count(place) < company and time.time() < until:
        time.sleep(0.1)


@depthrate.task(version=1)
def sickened(*, depth: int, trace: str, node: str, error: str, seconds: float = 1.0, context: Any) -> Any:
    """Fail on one node of the cluster with an error, and go well on every other."""
    here = os.environ.get("SLURMD_NODENAME")
    with open(trace, "a") as file:
        file.write(f"{depth} {here}\n")
    if here == node or node == "all":
        raise RuntimeError(error)
    time.sleep(seconds)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}
