"""What one fresh process does to a store, timed inside it; the answer is one line of JSON, seconds by name.

    python -m benchmarks.store_measures diff --store /some/folder --sweep-file sweep.json

Every name that ends in `again` is the second time in the same process: imports are done and, where the store caches,
its caches are filled.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import load_sweep

QUERIES = {
    "group by, results": "select weight_decay, avg(nc1) as nc1 from results group by 1 order by 1",
    "group by, metrics": (
        "select t.weight_decay, avg(m.nc1) as nc1 from metrics m join trials t using (trial_id) "
        "where m.is_last group by 1 order by 1"
    ),
    "one trial's rows": "select * from metrics where trial_id = '{trial_id}' order by layer",
}
Seconds = dict[str, float]


class Clock:
    """Seconds since it was made or last asked."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap and begin the next."""
        now = time.perf_counter()
        seconds, self._started = now - self._started, now
        return seconds


def measure_diff(url: str, sweep_file: str) -> Seconds:
    """Compare a sweep with the store, as the plan of a launch does, without forming packs."""
    clock = Clock()
    trials = check_sweep(load_sweep(sweep_file)).trials
    expanding = clock.lap()
    store, times = Store(url), []
    for _ in range(2):
        clock.lap()
        committed = take_snapshot(store).trial_ids()
        pending = [trial for trial in trials if trial.trial_id not in committed]
        times.append(clock.lap())
    assert not pending, f"{len(pending)} trials of the sweep are not in the store"
    return {"expand the sweep": expanding, "diff": times[0], "diff, again": times[1]}


def measure_driver(url: str, sweep_file: str) -> Seconds:
    """Do what a launch holds in memory while it runs: its plan, and the commits it has read."""
    store, cache, clock = Store(url), SnapshotCache(), Clock()
    plan = make_plan(check_sweep(load_sweep(sweep_file)), store)
    planning = clock.lap()
    take_snapshot(store, cache=cache)
    first = clock.lap()
    take_snapshot(store, cache=cache)
    again = clock.lap()
    assert plan.num_pending == 0
    return {"driver: plan": planning, "driver: look": first, "driver: look, again": again}


def measure_query(store: str, sweep_file: str, name: str) -> Seconds:
    """Open the store and ask one question twice; the first time pays for imports, as in a new notebook."""
    trial_id = check_sweep(load_sweep(sweep_file)).trials[-1].trial_id if "trial_id" in QUERIES[name] else ""
    clock = Clock()
    from depthrate.orchestrator.analysis.open_results import open_results

    importing = clock.lap()
    results = open_results(store)
    opening = clock.lap()
    times = []
    for _ in range(2):
        rows = results.sql(QUERIES[name].format(trial_id=trial_id)).fetchall()
        times.append(clock.lap())
    assert rows, f"{name}: no rows"
    return {"import": importing, "open": opening, name: times[0], f"{name}, again": times[1]}


def peak_mb() -> float:
    """Return the most memory this process ever held; getrusage would count the one that started it as well."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


MEASURES: dict[str, Callable[[str, str], Seconds]] = {
    "diff": measure_diff,
    "driver": measure_driver,
    **{f"query:{name}": partial(measure_query, name=name) for name in QUERIES},
}


def main() -> None:
    """Run one measure and print its times and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--store", required=True)
    parser.add_argument("--sweep-file", required=True)
    arguments = parser.parse_args()
    seconds = MEASURES[arguments.measure](arguments.store, arguments.sweep_file)
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
