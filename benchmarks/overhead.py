"""What it costs to run a pack that does nothing: ours on local processes and on Ray, beside the tools one would use instead.

    python benchmarks/overhead.py [--packs 500] [--workers 2] [--only local,ray,...]

Each way runs the same number of no-op jobs, and is timed from the first submission to the last end, with everything
started and warm: processes, Ray, and one job before the clock starts. Ours commits each pack's trial to a store in a
folder and keeps the attempt's record; the others return nothing and keep nothing, unless it says so.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from depthrate.orchestrator.attempts.options import JobOptions
from depthrate.orchestrator.executors.base import Executor
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.launch_plan import Plan, check_sweep, make_plan
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.packing import make_pack

NOOP = """
import depthrate

@depthrate.task(version=1)
def noop(*, index: int):
    return {"metrics": [{"layer": 1, "nc1": 0.0}]}
"""


def our_plan(folder: Path, packs: int, first: int) -> tuple[Plan, Store]:
    """Return a plan of packs of one trial each, whose indices begin at `first`."""
    (folder / "noop.py").write_text(NOOP)
    spec = {"name": "noop", "task": f"{folder}/noop.py:noop", "grid": {"index": list(range(first, first + packs))}}
    checked, store = check_sweep(sweep_of_spec(spec)), Store(str(folder / "store"))
    plan = make_plan(checked, store)
    single = [make_pack([trial]) for pack in plan.packs for trial in pack.trials]
    return Plan(checked, plan.snapshot, plan.done, single, {}, []), store


def run_ours(executor: Executor, packs: int) -> float:
    """Return the seconds that our driver takes with an executor that is warm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count, first in ((2 * executor.capacity, 0), (packs, 2 * executor.capacity)):  # the first warms up
            plan, store = our_plan(folder, count, first)
            options = JobOptions(
                store=store.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None
            )
            started = time.perf_counter()
            outcome = Driver(plan, store, executor, options, lambda progress: None).run()
            seconds = time.perf_counter() - started
            assert not outcome.failures
    return seconds


def local(packs: int, workers: int) -> float:
    """Ours on worker processes."""
    executor = LocalExecutor(workers)
    try:
        return run_ours(executor, packs)
    finally:
        executor.close()


def ray_ours(packs: int, workers: int) -> float:
    """Ours on Ray Tune."""
    from depthrate.orchestrator.executors.ray.executor import RayExecutor
    from depthrate.orchestrator.executors.ray.session import Session

    executor = RayExecutor(Session(address=None, workers=workers).connect(), workers=workers)
    try:
        return run_ours(executor, packs)
    finally:
        executor.close()


def bare_ray(run: Callable[[int], float], packs: int, workers: int) -> float:
    """Start Ray as our executor does, and run something on it."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the other one prints although it is told not to
    from depthrate.orchestrator.executors.ray.session import Session

    session = Session(address=None, workers=workers).connect()
    try:
        return run(packs)
    finally:
        session.close()


def tune_default(packs: int) -> float:
    """Ray Tune as its guide shows it: a function that reports once, every trial in an actor of its own."""
    from ray import tune

    def noop(config: dict[str, Any]) -> None:
        tune.report({"nc1": 0.0})

    folder = tempfile.mkdtemp()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    started = time.perf_counter()
    tune.run(noop, config={"index": tune.grid_search(list(range(packs)))}, storage_path=folder, verbose=0)
    seconds = time.perf_counter() - started
    shutil.rmtree(folder, ignore_errors=True)
    return seconds


def tune_reused(packs: int, bare: bool = False) -> float:
    """Ray Tune with actors that are used again; with `bare` also without loggers and state."""
    from ray import tune

    class Noop(tune.Trainable):
        """One step, which does nothing."""

        def step(self) -> dict[str, Any]:
            return {"done": True, "nc1": 0.0}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            return None

    folder = tempfile.mkdtemp()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    if bare:
        os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
        os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "1000000000"
    started = time.perf_counter()
    space = {"index": tune.grid_search(list(range(packs)))}
    tune.run(Noop, config=space, storage_path=folder, verbose=0, reuse_actors=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(folder, ignore_errors=True)
    return seconds


def ray_tasks(packs: int) -> float:
    """Bare Ray tasks, all submitted at once."""
    import ray

    @ray.remote
    def noop(index: int) -> int:
        return index

    ray.get([noop.remote(index) for index in range(4)])
    started = time.perf_counter()
    ray.get([noop.remote(index) for index in range(packs)])
    return time.perf_counter() - started


def submitit_local(packs: int, workers: int) -> float:
    """submitit's LocalExecutor, `workers` jobs at a time."""
    import submitit

    folder = tempfile.mkdtemp()
    executor = submitit.LocalExecutor(folder=folder)
    started = time.perf_counter()
    jobs: list[Any] = []
    for index in range(packs):
        while sum(not job.done() for job in jobs[-2 * workers :]) >= workers:
            time.sleep(0.005)
        jobs.append(executor.submit(abs, index))
    assert [job.result() for job in jobs] == list(range(packs))
    seconds = time.perf_counter() - started
    shutil.rmtree(folder, ignore_errors=True)
    return seconds


def optuna_alone(packs: int) -> float:
    """Optuna's loop in this process with TPE in memory: what only proposing costs."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    started = time.perf_counter()
    study.optimize(lambda trial: trial.suggest_float("lr", 1e-3, 1, log=True), n_trials=packs)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    workers = given.workers
    few = max(10, given.packs // 25)  # of the ways that take seconds a job
    ways: dict[str, tuple[int, Callable[[int], float]]] = {
        "local": (given.packs, lambda packs: local(packs, workers)),
        "ray": (given.packs, lambda packs: ray_ours(packs, workers)),
        "ray_tasks": (given.packs, lambda packs: bare_ray(ray_tasks, packs, workers)),
        "tune_bare": (given.packs, lambda packs: bare_ray(lambda n: tune_reused(n, bare=True), packs, workers)),
        "tune_reused": (given.packs, lambda packs: bare_ray(tune_reused, packs, workers)),
        "tune_default": (few, lambda packs: bare_ray(tune_default, packs, workers)),
        "submitit_local": (few, lambda packs: submitit_local(packs, workers)),
        "optuna_alone": (given.packs, optuna_alone),
    }
    chosen = given.only.split(",") if given.only else list(ways)
    for name in chosen:
        packs, way = ways[name]
        seconds = [way(packs) for _ in range(given.repeat)]
        each = 1000 * statistics.median(seconds) / packs
        print(f"{name:16} {packs:5} packs  {statistics.median(seconds):8.2f} s  {each:9.2f} ms a pack", flush=True)


if __name__ == "__main__":
    main()
