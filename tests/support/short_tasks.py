"""Short tasks of one trial a pack, which die where they are told to: what goes together in one attempt must not show."""

import json
import os
import time
from pathlib import Path
from typing import Any

import depthrate
from depthrate.storage.commits import commit


@depthrate.task(version=1, fusible=["seed"])
def hop(*, depth: int, step_s: float = 0.01, seed: int = 0) -> Any:
    """A number made of the depth and the seed; each depth is a pack."""
    time.sleep(step_s)
    values = [(depth * 6364136223846793005 + item * 1442695040888963407) % 2**64 / 2**64 for item in seed]  # type: ignore[attr-defined]
    return [{"metrics": [{"layer": depth, "nc1": v}], "curves": [{"step": 1, "loss": v}]} for v in values]


@depthrate.task(version=1, fusible=["seed"])
def dies(*, depth: int, folder: str, at: int = 30, where: str = "between", seed: int = 0) -> Any:
    """Notes that it ran; at one depth its process is killed once, there or in the commit that follows."""
    with Path(folder, "ran").open("a") as file:
        file.write(f"{depth}\n")
    flag = Path(folder, "dead")
    if depth == at and not flag.exists():
        flag.touch()
        if where == "between":
            os.kill(os.getpid(), 9)
        _die_in_commit(where)
    return [{"metrics": [{"layer": depth, "nc1": 1.0 / depth}]} for _ in seed]  # type: ignore[attr-defined]


def _die_in_commit(where: str) -> None:
    """Have this process killed at the next commit: before or after a table is written."""
    table, _, when = where.partition(" ")
    plain = commit.write_table

    def write(store: Any, path: str, name: str, *given: Any, **named: Any) -> Any:
        if name == table and when == "before":
            os.kill(os.getpid(), 9)
        written = plain(store, path, name, *given, **named)
        if name == table:
            os.kill(os.getpid(), 9)
        return written

    commit.write_table = write


@depthrate.task(version=1, fusible=["seed"])
def fails(*, depth: int, bad: int = 20, seed: int = 0) -> Any:
    """One depth never works."""
    if depth == bad:
        raise RuntimeError(f"depth {depth} is cursed")
    return [{"metrics": [{"layer": depth, "nc1": 1.0}]} for _ in seed]  # type: ignore[attr-defined]


@depthrate.task(version=1)
def breaks(*, depth: int, bad: int = 4, how: str = "metrics") -> Any:
    """Its trials run in turn; that of one depth has features and then no metrics, or features of which one layer fails."""

    def layers() -> Any:
        for layer in range(depth):
            yield [{"layer": layer, "kind": "sample", "label": 0, "feature": [1.0, 2.0]}]
            if depth == bad and how == "features":
                raise RuntimeError("no more layers")

    nc1: Any = "no number" if depth == bad and how == "metrics" else 1.0
    return {"metrics": [{"layer": depth, "nc1": nc1}], "features": layers()}


@depthrate.task(version=1)
def forks(*, depth: int, folder: str) -> Any:
    """Its process is killed once, and a process that it has forked goes on, with all that was open."""
    child = Path(folder, "child")
    if not child.exists():
        if not (pid := os.fork()):
            time.sleep(60)
            os._exit(0)
        child.write_text(str(pid))
        os.kill(os.getpid(), 9)
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth}]}


@depthrate.task(version=1)
def lingers(*, depth: int, folder: str, at: int = 3) -> Any:
    """Its trials run in turn; at one depth the features come when a file is there."""

    def layers() -> Any:
        while depth == at and not Path(folder, "go").exists():
            time.sleep(0.05)
        yield [{"layer": depth, "kind": "sample", "label": 0, "feature": [1.0, 2.0]}]

    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth}], "features": layers()}


@depthrate.task(version=1, fusible=["seed"])
def widens(*, depth: int, width: int = 2, text_at: int = -1, seed: int = 0) -> Any:
    """Its features are as wide as the depth says; at one depth its own column is a text, and elsewhere a number."""
    feature = [1.0] * (width + depth % 2)
    mark: Any = "text" if depth == text_at else 1.0
    rows = [{"layer": depth, "nc1": 1.0, "mark": mark}]
    tables: dict[str, Any] = {"metrics": rows}
    if text_at < 0:
        tables["features"] = [{"layer": depth, "kind": "sample", "label": 0, "feature": feature}]
    return [tables for _ in seed]  # type: ignore[attr-defined]


@depthrate.task(version=1)
def walk(*, depth: int, steps: int = 40, step_s: float = 0.02, seed: int = 0, context: Any) -> Any:
    """Step through a generator of numbers, saving its state when asked or due: a step omitted or repeated shows."""
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
