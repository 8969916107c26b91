"""Memory and open descriptors of one launch over very many packs that do nothing: flat, or growing with what was run?

    python benchmarks/many_packs.py [--packs 20000] [--workers 2] [--every 10] [--alone]

The launch is the command itself, on worker processes of this machine, with all that it does besides: claims, records,
commits, upkeep. Short packs go to a worker many at a time, in one attempt; with --alone each is an attempt of its own. A line
is a sample: seconds, packs that have run, and of the driver and of each worker the resident memory in MB and the number of open
descriptors. The end compares the second tenth of the packs with the last.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TASK = """
import depthrate


@depthrate.task(version=1, fusible=["seed"])
def noop(*, index: int, tally: str, seed: int = 0):
    with open(tally, "ab") as file:
        file.write(b".")
    return [{"metrics": [{"layer": 1, "nc1": 0.0}]} for _ in seed]
"""
"""Every index is a shape of its own, and so a pack."""
ALONE = """
from depthrate.orchestrator.cli.app import main
from depthrate.orchestrator.executors.local import LocalExecutor

LocalExecutor.takes_batches = False
main()
"""


@dataclass(frozen=True)
class Sample:
    """What one process held at one moment."""

    packs: int
    is_driver: bool
    resident_mb: float
    descriptors: int


def sample(pid: int, packs: int, *, is_driver: bool) -> Sample | None:
    """Look at a process; None if it is gone."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    return None if found is None else Sample(packs, is_driver, int(found[1]) / 1024, descriptors)


def workers_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for path in found for child in path.read_text().split())


def watch(process: subprocess.Popen[bytes], tally: Path, every_s: float) -> Iterator[Sample]:
    """Yield samples of a launch and its workers until it ends, and print each."""
    started = time.perf_counter()
    while True:
        try:
            process.wait(timeout=every_s)
            return
        except subprocess.TimeoutExpired:
            packs = tally.stat().st_size
            found = [sample(process.pid, packs, is_driver=True)]
            found += [sample(pid, packs, is_driver=False) for pid in workers_of(process.pid)]
            there = [item for item in found if item is not None]
            held = "   ".join(f"{item.resident_mb:6.0f} MB {item.descriptors:3d} fd" for item in there)
            print(f"{time.perf_counter() - started:6.0f} s  {packs:6d} packs   {held}", flush=True)
            yield from there


def summary(samples: list[Sample], packs: int) -> Iterator[str]:
    """Yield a line for the driver and one for the workers: medians early and late."""
    for is_driver in (True, False):
        own = [item for item in samples if item.is_driver == is_driver]
        early = [item for item in own if packs // 10 <= item.packs < packs // 5]
        late = [item for item in own if packs - packs // 10 <= item.packs < packs]  # then come the fits
        who = "driver" if is_driver else "workers"
        if not early or not late:
            yield f"{who}: too few samples; take a smaller --every"
            continue
        memory, opened = (
            [statistics.median(getattr(item, name) for item in part) for part in (early, late)]
            for name in ("resident_mb", "descriptors")
        )
        yield (
            f"{who}: {memory[0]:.0f} MB -> {memory[1]:.0f} MB ({1024 * (memory[1] - memory[0]) / (0.8 * packs):+.2f} kB "
            f"a pack), at most {max(item.resident_mb for item in own):.0f} MB; {opened[0]:.0f} -> {opened[1]:.0f} "
            f"descriptors, at most {max(item.descriptors for item in own)}"
        )


def main() -> None:
    """Run it and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--alone", action="store_true", help="each pack is an attempt of its own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, tally = Path(name), Path(name) / "tally"
        tally.touch()
        (folder / "noop.py").write_text(TASK)
        sweep = f"name: noop\ntask: ./noop.py:noop\nparams: {{tally: {tally}}}\ngrid: {{index: {list(range(given.packs))}}}\n"
        (folder / "noop.yaml").write_text(sweep)
        words = ["run", str(folder / "noop.yaml"), "--store", f"{folder}/store", "--workers", str(given.workers)]
        before, started = os.times(), time.perf_counter()
        command = [sys.executable, *(("-c", ALONE) if given.alone else ("-m", "depthrate")), *words]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            samples = list(watch(process, tally, given.every))
        finally:
            process.kill()
            process.wait()
        seconds, after = time.perf_counter() - started, os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        ran = tally.stat().st_size
    print(f"{ran} packs of {given.packs} in {seconds:.0f} s, {cpu_s:.0f} processor s, exit code {process.returncode}")
    print(*summary(samples, given.packs), sep="\n")
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
