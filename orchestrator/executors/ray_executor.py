"""Packs as Ray Tune trials: on a Ray of our own on this machine, or on a cluster that is there. The only home of ray.

A Tune trial is a worker: an actor with a CPU and a share of a GPU, which takes one pack after another as long as there
are any, so that Tune's cost of a trial (an actor, a placement group) is not paid for every pack. Packs and orders go to
it through Ray's key-value store. Tune logs nothing, checkpoints nothing and returns nothing: results stand in the store,
and retries are the driver's.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import math
import os
import queue
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

# Read when ray is imported. The first sends nothing home; the second keeps a cluster of one node on 127.0.0.1. Ray's own
# watch over memory kills workers because of others' processes, and Tune does not survive that.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
# Tune's thread may outlive the connection for a moment, and would then start another Ray.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import ray
from ray import cloudpickle, tune
from ray.experimental import internal_kv
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from depthrate.orchestrator.executors.executor import JobEnd, PackJob
from depthrate.orchestrator.executors.local import WORKER_ENVIRONMENT
from depthrate.orchestrator.worker import StopFlag, run_job

log = logging.getLogger("depthrate")
LOOK_FOR_STOP_S = 0.5
"""How often a busy worker looks whether it should stop."""
STOP_WAIT_S = 60.0
"""Longest wait at the end for packs that were asked to stop."""
LOOK_FOR_ORDER_S = 0.02
"""How often an idle worker looks for its next pack."""
LINGER_S = 15.0
"""How long an idle worker waits for a pack before it gives its CPU or GPU back; a new one takes seconds to start."""
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
                with _sheltered():
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
                self._folder = tempfile.mkdtemp(prefix="dr-code-")
                code = {"py_modules": [our_code(self._folder)]}
                ray.init(address=address, runtime_env={"env_vars": environment, **code}, **shared)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            self._remove_folder()
            where = "no Ray could be started here" if address is None else f"no Ray cluster at {address!r}"
            raise RayError(f"{where}: {error}; `ray status` shows what is there") from error

    def resources(self) -> dict[str, float]:
        """Return what the nodes have together: CPU, GPU."""
        return dict(ray.cluster_resources())

    def memory_per_cpu(self) -> float | None:
        """Return the bytes that each CPU's packs may use on the node with the least, as Ray knows it."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        shares = [node["memory"] / node["CPU"] for node in nodes if node.get("memory")]
        return min(shares, default=None)

    def close(self) -> None:
        """Disconnect, and end what was started."""
        if not self.is_ours:
            return
        try:
            ray.shutdown()
        finally:
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes that outlive a closed terminal, and of which none leaves gigabytes of core file if it aborts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if is_main else None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        if is_main:
            signal.signal(signal.SIGHUP, before)


class RayExecutor:
    """Packs as trials of one Tune run, which lives in a thread of its own as long as the launch."""

    outlives_driver = False

    def __init__(self, session: Session, *, workers: int, gpu_share: float = 0.0):
        """Run up to `workers` packs at once, each on one CPU and a share of a GPU."""
        # one more for each worker lies ready, so that none waits for the driver
        self.capacity = 2 * workers
        self._session = session
        # a signal's handler may put while the same thread gets: other queues would wait for themselves
        self._ends: queue.SimpleQueue[JobEnd | BaseException] = queue.SimpleQueue()
        self._dispatcher = _Dispatcher(self._ends, f"depthrate-{secrets.token_hex(8)}", workers)
        self._open: set[str] = set()
        self._folder = tempfile.mkdtemp(prefix="dr-tune-")
        resources = {"cpu": 1.0} | ({"gpu": gpu_share} if gpu_share else {})
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it would speak of failed trials and missing logs
        os.environ.update(_TUNE_SETTINGS, TUNE_MAX_PENDING_TRIALS_PG=str(workers))
        self._thread = threading.Thread(target=self._run_tune, args=(resources,), daemon=True)

    def submit(self, jobs: Sequence[PackJob]) -> None:
        """Lay packs ready for the workers; Tune starts these where there is room."""
        for job in jobs:
            self._open.add(job.attempt_id)
            self._dispatcher.waiting.put(job)
        if self._thread.ident is None:  # not before: Tune sleeps for a second where there is nothing to do
            self._thread.start()

    def running(self) -> Mapping[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""
        jobs = [job for job in list(self._dispatcher.assigned.values()) if job is not None]
        return {job.attempt_id: job.attempt_id for job in jobs}

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
            self._open.discard(message.attempt_id)
            ends.append(message)
        return ends

    def stop(self) -> None:
        """Ask running packs to save a checkpoint and end; those that have not started end at once."""
        _put(self._dispatcher.stop_key, "1")
        for job in self._dispatcher.take_back():
            self._ends.put(JobEnd(job.attempt_id, kind="not_started"))

    def close(self) -> None:
        """End the Tune run and the connection; what still runs is killed."""
        try:
            if self._thread.is_alive():
                self._dispatcher.is_over = True
                self.stop()
                self._await_workers(STOP_WAIT_S if not self._open or not self._session.is_ours else 5.0)
        finally:
            self._session.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _await_workers(self, longest_s: float) -> None:
        """Wait for those that have started; Tune itself would also wait for those that have no place to start."""
        deadline = time.monotonic() + longest_s
        while self._thread.is_alive() and self._dispatcher.has_started and time.monotonic() < deadline:
            self._thread.join(timeout=0.1)
        self._thread.join(timeout=2.0)

    def _run_tune(self, resources: dict[str, float]) -> None:
        try:
            tune.run(
                tune.with_resources(PackTrainable, resources),
                num_samples=-1,
                search_alg=_WorkerSource(self._dispatcher),
                callbacks=[self._dispatcher],
                storage_path=self._folder,
                name="packs",
                trial_dirname_creator=_short_name,
                raise_on_failed_trial=False,
                verbose=0,
            )
        except BaseException as error:
            self._ends.put(error)


def _put(key: str, value: str) -> None:
    internal_kv._internal_kv_put(key.encode(), value.encode())


def _get(key: str) -> str | None:
    value = internal_kv._internal_kv_get(key.encode())
    return None if value is None else value.decode()


def _short_name(trial: TuneTrial) -> str:
    return str(trial.trial_id)


class PackTrainable(tune.Trainable):
    """A worker: a step of it is one pack, run as every other executor runs it, or a stretch between two reports."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin to look for the sign to stop."""
        self._orders, self._stop_key = config["orders"], config["stop_key"]
        self._stop = StopFlag()
        self._num_orders = 0
        self._pack: _WatchedPack | None = None
        threading.Thread(target=self._look_for_stop, daemon=True).start()

    def step(self) -> dict[str, Any]:
        """Carry out the next order; what comes of a pack stands in the store."""
        order = self._next_order()
        if order is None:
            return {"done": True}
        if self._pack is not None:
            return self._followed(self._pack.go_on(order["left_out"]))
        job = PackJob.from_json(order["job"])
        if _asha_rule(job) is None:
            run_job(job, self._stop)
            return {"done": False, "ended": True}
        self._pack = _WatchedPack(job, self._stop)
        return self._followed(self._pack.go_on([]))

    def cleanup(self) -> None:
        """Let a pack that is asked to stop save its checkpoint."""
        self._stop.set("its worker ends")
        while self._pack is not None and self._pack.go_on([]) is not None:
            pass

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Keep nothing: packs keep their checkpoints in the store."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing was kept."""

    def _next_order(self) -> dict[str, Any] | None:
        """Return what the driver wants next; None if that is nothing, for too long or because all is over."""
        give_up_at = time.monotonic() + LINGER_S
        while not self._is_told_to_stop() or self._pack is not None:
            order = json.loads(_get(self._orders) or "{}")
            if order.get("number") == self._num_orders:
                self._num_orders += 1
                return dict(order)
            if time.monotonic() > give_up_at:
                return None
            time.sleep(LOOK_FOR_ORDER_S)
        return None

    def _followed(self, report: str | None) -> dict[str, Any]:
        if report is None:
            self._pack = None
            return {"done": False, "ended": True}
        return {"done": False, "report": report}

    def _is_told_to_stop(self) -> bool:
        return _get(self._stop_key) is not None

    def _look_for_stop(self) -> None:
        while not self._stop.is_set:
            time.sleep(LOOK_FOR_STOP_S)
            if self._is_told_to_stop():
                self._stop.set("asked to stop")


class _WatchedPack:
    """A pack in a thread of its own that waits at each report until it is said which trials go on."""

    def __init__(self, job: PackJob, stop: StopFlag):
        self._job, self._stop = job, stop
        self._reports: queue.Queue[str | None] = queue.Queue()
        self._answers: queue.Queue[list[str]] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def go_on(self, left_out: list[str]) -> str | None:
        """Train to the next report and return it, or None at the end."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._answers.put(left_out)
        return self._reports.get()

    def _run(self) -> None:
        try:
            run_job(self._job, self._stop, self._judge)
        finally:
            self._reports.put(None)

    def _judge(self, step: int, values: Mapping[str, float]) -> list[str]:
        if self._stop.is_set:
            return []
        self._reports.put(json.dumps({"step": step, "values": values}))
        return self._answers.get()


def _asha_rule(job: PackJob) -> Mapping[str, Any] | None:
    """Return how trials of a pack are compared with those of all others while they train, if they are."""
    rules = [rule for rule in job.pruning or () if rule is not None and rule.get("rule") == "asha"]
    return rules[0] if rules else None


class _Dispatcher(tune.Callback):
    """Gives packs to Tune's workers and tells the driver how each ended; it lives in Tune's thread."""

    def __init__(self, ends: queue.SimpleQueue[JobEnd | BaseException], prefix: str, workers: int):
        self._ends, self._prefix, self._workers = ends, prefix, workers
        self.stop_key = f"{prefix}-stop"
        self.waiting: queue.SimpleQueue[PackJob] = queue.SimpleQueue()
        self.assigned: dict[str, PackJob | None] = {}
        """Of each worker, also those that have not started, its pack."""
        self.is_over = False
        self._idle: set[str] = set()
        """Workers that have started and wait for a pack."""
        self._num_orders: dict[str, int] = {}
        self._ladders: dict[str, _Ladder] = {}
        """Of each study, how its trials compare."""

    @property
    def needs_worker(self) -> bool:
        """Whether more packs lie ready than there are workers without one."""
        free = sum(job is None for job in self.assigned.values())
        return len(self.assigned) < self._workers and self.waiting.qsize() > free

    @property
    def has_started(self) -> bool:
        """Whether a worker has started and not ended."""
        return bool(self._num_orders)

    def new_worker(self, trial_id: str) -> dict[str, str]:
        """Note a worker and return what it needs to know."""
        self.assigned[trial_id] = None
        return {"orders": self._orders_key(trial_id), "stop_key": self.stop_key}

    def take_back(self) -> list[PackJob]:
        """Return all packs that no worker has yet."""
        jobs = []
        with contextlib.suppress(queue.Empty):
            while True:
                jobs.append(self.waiting.get_nowait())
        return jobs

    def on_step_begin(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        """Give packs that have come meanwhile to workers that wait for one."""
        for trial_id in list(self._idle):
            self._give_pack(trial_id)

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Give a worker its first pack."""
        self._num_orders[trial.trial_id] = 0
        self._give_pack(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        """Report a pack that came to its end and give the next; or say which trials of a pack go on."""
        job = self.assigned.get(trial.trial_id)
        if job is None:
            return
        if result.get("ended"):
            self._ends.put(JobEnd(job.attempt_id))
            self._give_pack(trial.trial_id)
        elif "report" in result:
            report = json.loads(result["report"])
            self._order(trial.trial_id, left_out=self._left_out(job, report["step"], report["values"]))

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Put the pack back that a worker got when it had just given up waiting for one."""
        job = self._forget(trial.trial_id)
        if job is not None:
            self._ends.put(JobEnd(job.attempt_id, kind="not_started"))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Report the pack whose worker or node is gone."""
        has_started = trial.trial_id in self._num_orders
        job = self._forget(trial.trial_id)
        if not has_started:  # workers do not start here: a pack must fail by that, or we would try for ever
            with contextlib.suppress(queue.Empty):
                job = self.waiting.get_nowait()
        if job is not None:
            error = _error_of(trial)
            self._ends.put(JobEnd(job.attempt_id, f"{type(error).__name__}: {error}"[:2000], kind_of(error)))

    def _give_pack(self, trial_id: str) -> None:
        self.assigned[trial_id] = None
        self._idle.add(trial_id)
        with contextlib.suppress(queue.Empty):
            job = self.waiting.get_nowait()
            self.assigned[trial_id] = job
            self._idle.discard(trial_id)
            self._order(trial_id, job=job.to_json())

    def _order(self, trial_id: str, **order: Any) -> None:
        _put(self._orders_key(trial_id), json.dumps({"number": self._num_orders[trial_id], **order}))
        self._num_orders[trial_id] += 1

    def _forget(self, trial_id: str) -> PackJob | None:
        self._idle.discard(trial_id)
        if self._num_orders.pop(trial_id, None) is not None:
            internal_kv._internal_kv_del(self._orders_key(trial_id).encode())
        return self.assigned.pop(trial_id, None)

    def _orders_key(self, trial_id: str) -> str:
        return f"{self._prefix}-{trial_id}"

    def _left_out(self, job: PackJob, step: int, values: Mapping[str, float]) -> list[str]:
        rule = _asha_rule(job)
        assert rule is not None
        if rule["study"] not in self._ladders:
            self._ladders[rule["study"]] = _Ladder(rule)
        return self._ladders[rule["study"]].left_out(step, values)


class _Ladder:
    """Tune's asynchronous successive halving (Li et al. 2020, algorithm 2) over the trials in all packs of a study."""

    def __init__(self, rule: Mapping[str, Any]):
        # a trial of ours is not one of Tune's; of these it only reads the name
        self._asha: Any = ASHAScheduler(
            time_attr="step",
            metric="value",
            mode="max" if rule["maximize"] else "min",
            max_t=10**9,  # a trial ends by itself
            grace_period=rule["from_step"],
            reduction_factor=rule["factor"],
        )
        self._known: dict[str, _Runner] = {}

    def left_out(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Return the trials that do not go on."""
        chosen = []
        for trial_id, value in values.items():
            if trial_id not in self._known:
                self._known[trial_id] = _Runner(trial_id)
                self._asha.on_trial_add(None, self._known[trial_id])
            result = {"step": step, "value": value}
            decision = self._asha.on_trial_result(None, self._known[trial_id], result)
            if decision == ASHAScheduler.STOP or not math.isfinite(value):
                chosen.append(trial_id)
        return chosen


@dataclass(frozen=True)
class _Runner:
    """What the scheduler knows of a trial."""

    trial_id: str


class _WorkerSource(Searcher):
    """Tells Tune to start a worker whenever one is needed."""

    def __init__(self, dispatcher: _Dispatcher):
        super().__init__()
        self._dispatcher = dispatcher

    def suggest(self, trial_id: str) -> Any:
        """Return a new worker's configuration, None if none is needed now, or that it is over."""
        if self._dispatcher.is_over:
            return Searcher.FINISHED
        if not self._dispatcher.needs_worker:
            if not self._dispatcher.assigned:
                time.sleep(0.05)  # Tune would ask again and again without a pause
            return None
        return self._dispatcher.new_worker(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing to learn."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing was kept."""


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


def count_nodes(address: str, wanted: int, wait_s: float) -> int:
    """Wait until a cluster has as many nodes as wanted, and return how many it has."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            break
        except (ConnectionError, RuntimeError, ValueError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)
    try:
        while True:
            there = sum(node["Alive"] for node in ray.nodes())
            if there >= wanted or time.monotonic() > deadline:
                return there
            time.sleep(0.5)
    finally:
        ray.shutdown()


def our_code(folder: str) -> str:
    """Copy our package into a folder, to be sent to nodes on which it may not be installed, and return where it is.

    Ray follows no links, and in a checkout the package consists of them.
    """
    copy = Path(folder) / "depthrate"
    with as_file(files("depthrate")) as package:
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return str(copy)


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
