"""How late the explorer of `depthrate serve` is, and what its process holds, while browsers watch a sweep that runs.

    python -m benchmarks.serve [--minutes 10] [--trials 1500] [--browsers 3]

A sweep of tiny trials, each a commit, runs with `depthrate run --workers 1` for about that long, and windows of Chromium show
its explorer with a filter, a pinned trial and a scrolled table. The nth trial is as late as the page, or the server's
answer, shows n trials as done after the nth commit was written. Printed are, each two minutes, the trials committed, both
latenesses in seconds (median, 95 %, most), the server's resident memory, and what the windows lost: their filter, pin or
scroll position, and the errors of their consoles.
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
VIEW = "weight_decay=0.001&seed=0..100"
"""Filter in the address of the page."""
WATCH = """
const shown = window.shownAt = [], text = document.getElementById('progress');
const look = () => {
  const done = parseInt(text.textContent.replaceAll(',', ''), 10) || 0;
  while (shown.length < done) shown.push(Date.now() / 1000);
};
look();
new MutationObserver(look).observe(text, { childList: true, subtree: true, characterData: true });
document.querySelector('#trials tbody tr')?.click();
document.querySelector('#trials .scroll').scrollTop = 200;
const scrolled = () => document.querySelector('#trials .scroll').scrollTop;
window.chosen = () => [location.hash, document.getElementById('pin').hidden, scrolled()];
window.before = JSON.stringify(chosen());
"""
"""Notes when the page showed each number of trials as done, pins a trial and scrolls the table."""


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
            window.visit(f"{address}sweep/many/#{VIEW}", 1280)
            window.wait("document.querySelectorAll('#trials tbody tr').length > 9")
            window.run(WATCH)
        answered: list[float] = []
        threading.Thread(target=_ask, args=(f"{address}state.json", answered), daemon=True).start()
        print("minute   trials        shown             answered      server MB   load   lost")
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


def _ask(address: str, answered: list[float]) -> None:
    """Note when the server first answered each number of trials as done."""
    while True:
        time.sleep(0.5)
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=60) as answer:
            counts = json.load(answer)["sweeps"][0]["counts"]
            answered += [time.time()] * (counts["ok"] + counts["diverged"] - len(answered))


def _tell(windows: list[Browser], answered: list[float], store: Path, pid: int, began: float, told: float) -> float:
    """Print what was committed since `told`, but for the last ten seconds, and return until when that is."""
    until = time.time() - 10.0
    written = sorted(
        path.stat().st_mtime
        for path in store.glob("trials/**/*.parquet")
        for _ in range(pq.read_metadata(path).num_rows)
    )
    committed = {number: at for number, at in enumerate(written) if told <= at < until}
    late = [_late(committed, [window.run("return window.shownAt") for window in windows]), _late(committed, [answered])]
    lost = [
        window.run("return JSON.stringify(chosen()) === before ? '' : JSON.stringify(chosen())") for window in windows
    ]
    errors = [message for window in windows for message in window.messages()]
    lost = sorted({f"{text:.100}" for text in [*filter(None, lost), *errors]})
    print(
        f"{(time.time() - began) / 60:6.1f}   {len(committed):6}   {late[0]:18}   {late[1]:18}   "
        f"{_resident_mb(pid):9.0f}   {os.getloadavg()[0]:4.1f}   {'; '.join(lost) or 'nothing'}",
        flush=True,
    )
    return until


def _late(committed: dict[int, float], seen: list[list[float]]) -> str:
    late = sorted(
        shown[number] - at if number < len(shown) else math.inf for shown in seen for number, at in committed.items()
    )
    return f"{statistics.median(late):.1f}, {late[int(0.95 * len(late))]:.1f}, {late[-1]:.1f}" if late else "nothing"


def _resident_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1e3
    return 0.0


if __name__ == "__main__":
    main()
