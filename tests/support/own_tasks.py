"""A user's own tasks, as the driver's tests run them."""

import os
import socket
import time
from pathlib import Path

import numpy as np

import depthrate


@depthrate.task(version=1)
def power_law(*, depth: int, exponent: float = 0.5, noise: float = 0.0, seed: int = 0):
    rng = np.random.default_rng([seed, depth])
    return {"metrics": [{"layer": depth, "nc1": depth**-exponent * np.exp(noise * rng.normal())}]}


@depthrate.task(version=1)
def fails(*, depth: int, bad: int = 3, seed: int = 0):
    if depth == bad:
        raise RuntimeError(f"depth {depth} is cursed")
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


@depthrate.task(version=1)
def oom_score(*, depth: int):
    """Measure by how much the kernel prefers to end this process when memory runs out."""
    with open("/proc/self/oom_score_adj") as file:
        return {"metrics": [{"layer": depth, "nc1": float(file.read())}]}


@depthrate.task(version=1)
def misspelt(*, depth: int):
    return {"metrics": [{"layer": depth.bit_lenght() if depth == 3 else depth, "nc1": 1.0}]}  # type: ignore[attr-defined]


@depthrate.task(version=1, fusible=["seed"])
def hungry(*, depth: int, seed: int, context):
    """Runs out of memory in packs of more than two."""
    if len(seed) > 2:
        raise MemoryError(f"{len(seed)} trials")
    return [{"metrics": [{"layer": depth, "nc1": 1.0 + s}]} for s in seed]


@depthrate.task(version=1)
def forgetful(*, depth: int, flag: str):
    """Runs out of memory once, at depth 4, after other trials of its pack have finished."""
    if depth == 4 and not Path(flag).exists():
        Path(flag).touch()
        raise MemoryError
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


@depthrate.task(version=1)
def dies_once(*, depth: int, flag: str, seed: int = 0, context):
    """The first attempt counts to five, keeps that, and is killed; the second goes on from there."""
    kept = context.load_checkpoint()
    if kept is None:
        context.save_checkpoint(b"5")
        os.kill(os.getpid(), 9)
    Path(flag).write_text(kept.decode())
    return {"metrics": [{"layer": depth, "nc1": float(kept)}]}


@depthrate.task(version=1)
def slow(*, depth: int, seed: int = 0, context):
    for step in range(200):
        context.progress(step, 200)
        if context.should_stop():
            raise depthrate.Interrupted
        time.sleep(0.02)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


@depthrate.task(version=1)
def held(*, depth: int, gate: str, context):
    """Does not end before the file `gate` is there."""
    step = 0
    while not Path(gate).exists():
        step += 1
        context.progress(step, 10_000)
        if context.should_stop():
            raise depthrate.Interrupted
        time.sleep(0.02)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


@depthrate.task(version=1)
def wrong(*, depth: int):
    return [1, 2, 3]


@depthrate.task(version=1)
def meets(*, depth: int, folder: str):
    """Waits until the other depth is there too, and measures which GPU it was given."""
    Path(folder, f"here-{depth}").touch()
    for _ in range(1000):
        if Path(folder, f"here-{3 - depth}").exists():
            return {"metrics": [{"layer": depth, "nc1": float(os.environ["CUDA_VISIBLE_DEVICES"])}]}
        time.sleep(0.02)
    raise RuntimeError("nobody came")


@depthrate.task(version=1)
def steady(*, depth: int, seconds: float, seed: int = 0, context):
    """Takes its time and goes on where it was stopped."""
    done = float((context.load_checkpoint() or b"0").decode())
    while done < seconds:
        if context.should_stop():
            context.save_checkpoint(str(done).encode())
            raise depthrate.Interrupted
        time.sleep(0.1)
        done += 0.1
    return {"metrics": [{"layer": depth, "nc1": done}]}


@depthrate.task(version=1)
def sick_at(*, depth: int, host: str, error: str):
    """Fails on one machine."""
    time.sleep(1)
    if socket.gethostname() == host:
        raise RuntimeError(error)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}


@depthrate.task(version=1, fusible=["seed"])
def large(*, depth: int, gb_each: float, seconds: float = 4.0, seed: int, context):
    """Needs memory in proportion to the pack, for some seconds."""
    held = bytearray(int(gb_each * 2**30) * len(seed))
    held[::4096] = b"x" * len(held[::4096])  # touches every page
    time.sleep(seconds)
    return [{"metrics": [{"layer": depth, "nc1": 1.0}]} for _ in seed]
