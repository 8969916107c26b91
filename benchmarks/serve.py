"""How late the page of `depthrate serve` is, and what its process holds, while browsers look at a sweep that runs.

    python -m benchmarks.serve [--minutes 10] [--trials 1500] [--browsers 3] [--report]

A sweep of tiny trials, each a commit, runs with `depthrate run --workers 1` for about that long; so many windows of Chromium
show its page, with `--report` the figures among the rest. A row is as late as the page shows a trial as done after its commit
was written; on a machine with few cores that is mostly the windows' own work, so that it stands beside the lateness of the
server's answer to who asks each half second. Printed are, each two minutes, the trials that were committed, both latenesses
(median, 95 %, most) and the resident memory of the server and of the process that draws for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

import depthrate

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.browser import Browser, browser

EVERY_S = 120.0
WATCH = """
const first = window.firstShown = {};
const look = () => document.querySelectorAll('#table tbody tr').forEach((row) => {
  const [trial, state] = [row.cells[0].textContent, row.cells[1].textContent];
  if ((state === 'ok' || state === 'diverged') && !(trial in first)) first[trial] = Date.now() / 1000;
});
look();
new MutationObserver(look).observe(document.getElementById('table'), { childList: true, subtree: true });
"""
"""Notes when the page showed each trial as done."""


@depthrate.task(version=1)
def fall(*, depth: int, weight_decay: float, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Wait, and return a collapse at each layer and a loss at each of 200 steps."""
    time.sleep(seconds)
    curves = [
        {"step": step, "loss": math.exp(-step / 50) + 0.01 * (seed % 7), "accuracy": step / 200}
        for step in range(1, 201)
    ]
    return {
        "metrics": [{"layer": k, "nc1": (1 + 0.01 * (seed % 7)) / (k + 1) ** 2} for k in range(depth + 1)],
        "curves": curves,
    }


def main() -> None:
    """Run the sweep, serve it, look at it, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--browsers", type=int, default=3)
    parser.add_argument(
        "--report", action="store_true", help="the windows are long enough to show the report's figures"
    )
    parser.add_argument("--module", default="depthrate", help="what is served, as `python -m MODULE serve`")
    given = parser.parse_args()
    executables = shutil.which("chromedriver"), shutil.which("chromium")
    if None in executables:
        parser.error("it needs the executables chromedriver and chromium")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as ends:
        folder, store = Path(scratch), Path(scratch) / "store"
        (folder / "many.yaml").write_text(yaml.safe_dump(_sweep(given.trials, 60 * given.minutes / given.trials)))
        words = ("run", str(folder / "many.yaml"), "--store", str(store), "--workers", "1", "--device", "cpu")
        run = _started(ends, "depthrate", *words, log=folder / "run.log")
        _wait(lambda: (store / "sweeps").is_dir())
        serve = _started(ends, given.module, "serve", "--store", str(store), "--port", "0", log=folder / "serve.log")
        _wait(lambda: "http://" in (folder / "serve.log").read_text())
        address = (folder / "serve.log").read_text().partition(" at ")[2].partition(" ")[0]
        windows = [ends.enter_context(browser()) for _ in range(given.browsers)]
        for window in windows:
            size = {"width": 1280, "height": 6000 if given.report else 900, "deviceScaleFactor": 1, "mobile": False}
            window._devtools("Emulation.setDeviceMetricsOverride", size)
            window._post("/url", {"url": f"{address}sweep/many/"})
            window.run(WATCH)
        answered: dict[str, float] = {}
        threading.Thread(target=_ask, args=(f"{address}sweep/many/trials.json", answered), daemon=True).start()
        print(
            "seconds late: median, 95 %, most\n"
            "minute   trials        shown             answered      server MB   drawing MB   load"
        )
        began, told = time.time(), time.time()
        while time.time() < began + 60 * given.minutes and run.poll() is None:
            time.sleep(min(EVERY_S, max(0.1, began + 60 * given.minutes - time.time())))
            told = _tell(windows, answered, store, serve.pid, began, told)
        if given.module != "depthrate":
            print((folder / "serve.log").read_text())


def _sweep(num_trials: int, seconds: float) -> dict[str, object]:
    return {
        "name": "many",
        "task": f"{Path(__file__).resolve()}:fall",
        "params": {"seconds": round(0.9 * seconds, 3)},
        "grid": {"depth": [2, 3, 5, 8, 13], "weight_decay": [1e-4, 1e-3, 1e-2]},
        "seeds": max(1, num_trials // 15),
        "fit": [{"metric": "nc1", "by": ["weight_decay"]}],
    }


def _started(ends: contextlib.ExitStack, module: str, *words: str, log: Path) -> subprocess.Popen[bytes]:
    output = ends.enter_context(log.open("wb"))
    process = subprocess.Popen([sys.executable, "-m", module, *words], stdout=output, stderr=subprocess.STDOUT)

    def end() -> None:
        process.send_signal(signal.SIGINT)
        process.wait(60)

    ends.callback(end)
    return process


def _wait(holds: object, patience_s: float = 60.0) -> None:
    assert callable(holds)
    ends_at = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def _ask(address: str, answered: dict[str, float]) -> None:
    """Note when the server answered that a trial is done, first."""
    tag = ""
    while True:
        time.sleep(0.5)
        asked = urllib.request.Request(address, headers={"If-None-Match": tag})
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(asked, timeout=60) as answer,
        ):  # also: nothing has changed
            tag, rows = answer.headers["ETag"], json.load(answer)["rows"]
            now = time.time()
            for row in rows:
                if row[1] in ("ok", "diverged"):
                    answered.setdefault(row[0], now)


def _tell(
    windows: list[Browser], answered: dict[str, float], store: Path, pid: int, began: float, told: float
) -> float:
    """Print what was committed since `told`, but for the last ten seconds, and return until when that is."""
    until = time.time() - 10.0
    committed: dict[str, float] = {}
    for path in store.glob("trials/**/*.parquet"):
        written = path.stat().st_mtime
        if told <= written < until:
            committed |= dict.fromkeys(pq.read_table(path, columns=["trial_id"])["trial_id"].to_pylist(), written)
    seen = [window.run("return window.firstShown") for window in windows]
    late = [_late(committed, seen), _late(committed, [dict(answered)])]
    said = [window.run("return document.getElementById('said').textContent") for window in windows]
    drawing = sum(_resident_mb(child) for child in _children(pid))
    print(
        f"{(time.time() - began) / 60:6.1f}   {len(committed):6}   {late[0]:18}   {late[1]:18}   "
        f"{_resident_mb(pid):9.0f}   {drawing:10.0f}   {os.getloadavg()[0]:4.1f}   {' '.join(filter(None, said))}",
        flush=True,
    )
    return until


def _late(committed: dict[str, float], seen: list[dict[str, float]]) -> str:
    late = sorted(shown.get(trial_id, math.inf) - at for shown in seen for trial_id, at in committed.items())
    return f"{statistics.median(late):.1f}, {late[int(0.95 * len(late))]:.1f}, {late[-1]:.1f}" if late else "nothing"


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    every = [path.read_text().split() for path in listed.parents[1].glob("*/children")] if listed.exists() else []
    return [int(child) for children in every for child in children]


def _resident_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1e3
    return 0.0


if __name__ == "__main__":
    main()
