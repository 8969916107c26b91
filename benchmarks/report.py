"""How long `depthrate report` takes for many trials with 20 fits, with or without figures for papers; how large the page is.

    python -m benchmarks.report --trials 10000 [--store FOLDER] [--figures]

The store is one of `benchmarks.store_synthetic` (made where FOLDER is empty or none is given): widths x weight decays x seeds,
35 layers a trial, four metrics fitted over width for each of five weight decays. Each report is a process of its own, as a user
calls it; beside its wall time stand its processor seconds, which hold on a machine that does other work too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.store_synthetic import synthetic_sweep, write_store
from depthrate.storage.files.store import Store

METRICS = ("nc1", "nc2a", "nc3", "objective_gap")


def main() -> None:
    """Make the store where there is none, write the report, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--store", help="a folder; one that holds such a store is used as it is")
    parser.add_argument("--figures", action="store_true", help="write the figures for papers too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        store = options.store or str(folder / "store")
        if not Store(store).list():
            write_store(store, options.trials)
        page = folder / "report.html"
        command = [sys.executable, "-m", "depthrate", "report", str(_sweep_file(folder, options.trials))]
        command += [
            "--store",
            store,
            "-o",
            str(page),
            *(["--figures", str(folder / "figures")] if options.figures else []),
        ]
        before, started = _children_s(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall_s, cpu_s = time.perf_counter() - started, _children_s() - before
        what = "page and figures" if options.figures else "page"
        print(
            f"{options.trials} trials, {len(METRICS) * 5} fits, {what}: {wall_s:.1f} s, {cpu_s:.1f} s of processor, page "
            f"{page.stat().st_size / 1e6:.2f} MB"
        )


def _sweep_file(folder: Path, num_trials: int) -> Path:
    """Write the sweep of the store, with its fits."""
    spec = synthetic_sweep(num_trials).spec()
    spec["fit"] = [{"metric": metric, "x": "width", "by": ["weight_decay"]} for metric in METRICS]
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return path


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
