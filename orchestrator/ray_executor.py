"""Packs as Ray Tune trials: on a Ray of our own on this machine, or on a cluster that is there. The only home of ray.

Tune starts each pack where its CPU and share of a GPU are free, in actors that it uses again and again. It logs nothing,
checkpoints nothing and returns nothing: results stand in the store, and retries are the driver's.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Read when ray is imported. The first sends nothing home; the second keeps a cluster of one node on 127.0.0.1.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import ray
from ray import cloudpickle, tune
from ray.experimental import internal_kv
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.executor import JobEnd, PackJob
from orchestrator.local_executor import WORKER_ENVIRONMENT
from orchestrator.worker import StopFlag, run_job

log = logging.getLogger("depthrate")
PACKAGES = ("orchestrator", "tasks", "sweeps", "storage", "slurm")
LOOK_FOR_STOP_S = 0.5
"""How often a busy worker looks whether it should stop."""
STOP_WAIT_S = 60.0
"""Longest wait at the end for packs that were asked to stop."""
START_WAIT_S = 120.0
"""Longest wait for a node to say what is installed on it."""
_TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # its state grows with every trial, and nobody reads it
    "TUNE_WARN_THRESHOLD_S": "30",
    "RAY_AIR_NEW_OUTPUT": "0",  # the other one is silent when told to be
}


class RayError(ValueError):
    """Ray cannot be reached, or its nodes cannot run our packs."""


class RayLost(OSError):
    """The connection to Ray broke while packs ran."""


class Session:
    """A connection to Ray: one of our own on this machine, or a cluster's."""

    def __init__(self, *, address: str | None, workers: int | None = None, gpus: int = 0):
        """Connect, or start what is asked for.

        Raises:
            RayError: the cluster cannot be reached.
        """
        self._folder: str | None = None
        self.is_ours = not ray.is_initialized()
        if not self.is_ours:
            return
        shared: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        environment = {**WORKER_ENVIRONMENT, "DEPTHRATE_DRIVER_PID": "", "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            if address is None:
                # short, because Ray's socket paths below it may have 107 bytes; our own, because /tmp/ray may be another user's
                self._folder = tempfile.mkdtemp(prefix="dr-ray-")
                ray.init(
                    address="local",
                    num_cpus=workers,
                    num_gpus=gpus,
                    include_dashboard=False,
                    _temp_dir=self._folder,
                    object_store_memory=100 * 2**20,  # nothing passes through it
                    runtime_env={"env_vars": environment},
                    **shared,
                )
            else:
                ray.init(address=address, runtime_env={"env_vars": environment, "py_modules": our_code()}, **shared)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            where = "no Ray could be started here" if address is None else f"no Ray cluster at {address!r}"
            raise RayError(f"{where}: {error}; `ray status` shows what is there") from error

    def resources(self) -> dict[str, float]:
        """Return what the nodes have together: CPU, GPU."""
        return dict(ray.cluster_resources())

    def close(self) -> None:
        """Disconnect, and end what was started."""
        if self.is_ours:
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class RayExecutor:
    """Packs as trials of one Tune run, which lives in a thread of its own as long as the launch."""

    outlives_driver = False

    def __init__(self, session: Session, *, workers: int, gpu_share: float = 0.0):
        """Run up to `workers` packs at once, each on one CPU and a share of a GPU."""
        # twice as many are submitted as run: Tune ends actors for which nothing waits
        self.capacity = 2 * workers
        self._session = session
        self._feed: queue.Queue[PackJob | None] = queue.Queue()
        self._ends: queue.Queue[JobEnd | BaseException] = queue.Queue()
        self._started: dict[str, str] = {}
        self._open: set[str] = set()
        self._stop_key = f"depthrate-stop-{secrets.token_hex(8)}"
        self._folder = tempfile.mkdtemp(prefix="dr-tune-")
        resources = {"cpu": 1.0} | ({"gpu": gpu_share} if gpu_share else {})
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it would speak of failed trials and missing logs
        os.environ.update(_TUNE_SETTINGS, TUNE_MAX_PENDING_TRIALS_PG=str(workers))
        self._thread = threading.Thread(target=self._run_tune, args=(resources,), daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[PackJob]) -> None:
        """Give packs to Tune, which starts them where there is room."""
        for job in jobs:
            self._open.add(job.attempt_id)
            self._feed.put(job)

    def running(self) -> Mapping[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""
        return dict(self._started)

    def poll(self, timeout_s: float) -> list[JobEnd]:
        """Wait up to `timeout_s` and return the packs that ended.

        Raises:
            RayLost: Tune broke down; what is committed stands.
        """
        ends: list[JobEnd] = []
        messages: list[JobEnd | BaseException] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._ends.get(timeout=timeout_s))
            while True:
                messages.append(self._ends.get_nowait())
        for message in messages:
            if isinstance(message, BaseException):
                raise RayLost(f"Ray Tune broke down: {type(message).__name__}: {message}") from message
            if message.attempt_id in self._open:
                self._open.discard(message.attempt_id)
                self._started.pop(message.attempt_id, None)
                ends.append(message)
        return ends

    def stop(self) -> None:
        """Ask running packs to save a checkpoint and end; those that have not started end at once."""
        internal_kv._internal_kv_put(self._stop_key.encode(), b"1")
        while True:
            try:
                job = self._feed.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._ends.put(JobEnd(job.attempt_id, kind="not_started"))

    def close(self) -> None:
        """End the Tune run and the connection; what still runs is killed."""
        if self._thread.is_alive():
            if self._open:
                self.stop()
            self._feed.put(None)
            self._thread.join(timeout=STOP_WAIT_S if not self._open or not self._session.is_ours else 5.0)
        self._session.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run_tune(self, resources: dict[str, float]) -> None:
        try:
            tune.run(
                tune.with_resources(PackTrainable, resources),
                num_samples=-1,
                config={"stop_key": self._stop_key},
                search_alg=_JobSource(self._feed, self._started),
                callbacks=[_EndListener(self._ends, self._started)],
                storage_path=self._folder,
                name="packs",
                trial_dirname_creator=_short_name,
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=0,
            )
        except BaseException as error:
            self._ends.put(error)


def _short_name(trial: TuneTrial) -> str:
    return str(trial.trial_id)


class PackTrainable(tune.Trainable):
    """A worker: one step of it is one pack, run as every other executor runs it."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin to look for the sign to stop."""
        self._stop = StopFlag()
        self._key = config["stop_key"].encode()
        threading.Thread(target=self._look_for_stop, daemon=True).start()

    def step(self) -> dict[str, Any]:
        """Run the pack; what came of it stands in the store."""
        if self._is_told_to_stop():
            return {"done": True, "not_started": True}
        run_job(PackJob.from_json(self.config["job"]), self._stop)
        return {"done": True, "not_started": False}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Accept the next pack."""
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Keep nothing: packs keep their checkpoints in the store."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing was kept."""

    def _is_told_to_stop(self) -> bool:
        return internal_kv._internal_kv_get(self._key) is not None

    def _look_for_stop(self) -> None:
        while not self._stop.is_set:
            time.sleep(LOOK_FOR_STOP_S)
            if self._is_told_to_stop():
                self._stop.set("asked to stop")


class _JobSource(Searcher):
    """Hands the driver's packs to Tune, which asks for them one by one."""

    def __init__(self, feed: queue.Queue[PackJob | None], started: dict[str, str]):
        super().__init__()
        self._feed, self._started = feed, started

    def suggest(self, trial_id: str) -> Any:
        """Return the next pack, None if there is none now, or that it is over."""
        try:
            # Tune would ask again and again without a pause while nothing runs
            job = self._feed.get_nowait() if self._started else self._feed.get(timeout=0.05)
        except queue.Empty:
            return None
        return Searcher.FINISHED if job is None else {"job": job.to_json(), "attempt_id": job.attempt_id}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing to learn."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing was kept."""


class _EndListener(tune.Callback):
    """Tells the driver what Tune started and what has ended."""

    def __init__(self, ends: queue.Queue[JobEnd | BaseException], started: dict[str, str]):
        self._ends, self._started = ends, started

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Note a pack that begins."""
        attempt_id = trial.config["attempt_id"]
        self._started[attempt_id] = attempt_id

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Report a pack whose worker came to its end."""
        not_started = bool((trial.last_result or {}).get("not_started"))
        end = (
            JobEnd(trial.config["attempt_id"], kind="not_started")
            if not_started
            else JobEnd(trial.config["attempt_id"])
        )
        self._ends.put(end)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Report a pack whose worker or node is gone."""
        error = _error_of(trial)
        self._ends.put(JobEnd(trial.config["attempt_id"], f"{type(error).__name__}: {error}"[:2000], kind_of(error)))


def _error_of(trial: TuneTrial) -> BaseException:
    """Return what Tune kept, in this process's own folder, of how a trial failed; its own getters look where it copies to."""
    if trial.pickled_error_file is None:
        return RuntimeError("Ray kept no error")
    with open(trial.pickled_error_file, "rb") as file:
        error: BaseException = cloudpickle.load(file)
    return error


def kind_of(error: BaseException) -> str:
    """Return the kind of failure (`orchestrator.retry`) that an error of Ray's is."""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
        return "out_of_memory"
    if isinstance(error, ray.exceptions.NodeDiedError) or "node has died" in text or "preempted" in text:
        return "node_lost"
    if "node" in text and ("was terminated" in text or ("died" in text and "its node" in text)):
        return "node_lost"
    return "task" if isinstance(error, ray.exceptions.RayTaskError) else "worker_lost"


def our_code() -> list[str]:
    """Return the folders of our packages, to be sent to nodes on which they may not be installed."""
    root = Path(__file__).parents[1]
    return [str(root / name) for name in PACKAGES] + [str(root / "depthrate.py")]


def installed_versions() -> dict[str, str]:
    """Return the versions on which numbers and file formats depend."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("ray", "torch", "numpy", "pyarrow"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def check_versions() -> list[str]:
    """Compare what is installed on each node with what is installed here, and return the differences in words.

    Raises:
        RayError: a node lacks what every pack needs.
    """
    here = installed_versions()
    asked = {
        node["NodeID"]: ray.remote(installed_versions)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote()
        for node in ray.nodes()
        if node["Alive"]
    }
    differences = []
    for node_id, answer in asked.items():
        try:
            there = ray.get(answer, timeout=START_WAIT_S)
        except ray.exceptions.RayError as error:
            raise RayError(f"Ray node {node_id[:8]} does not run our code: {error}") from error
        missing = [name for name in ("numpy", "pyarrow") if there[name] == "not installed"]
        if missing:
            raise RayError(f"Ray node {node_id[:8]} lacks {', '.join(missing)}; install there what is installed here")
        differences += [
            f"node {node_id[:8]} has {name} {there[name]}, here it is {here[name]}"
            for name in here
            if there[name] != here[name]
        ]
    return differences
