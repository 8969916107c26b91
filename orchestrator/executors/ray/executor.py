"""The Ray executor: packs run by Ray Tune trials, on a local Ray or an existing cluster.

Tune neither logs, checkpoints nor returns anything: results are in the store, and the driver retries.
"""

import contextlib
import logging
import os
import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.ray.settings import TUNE_SETTINGS  # first: ray reads the environment

# isort: split
import ray
from ray import tune

from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd, Estimate, Executor, RequeueReason
from depthrate.orchestrator.executors.errors import MachineError
from depthrate.orchestrator.executors.machine import USABLE_SHARE, choose_machine
from depthrate.orchestrator.executors.ray.dispatcher import Dispatcher, WorkerSource
from depthrate.orchestrator.executors.ray.errors import RayLost, outlive_memory_kills, short_error
from depthrate.orchestrator.executors.ray.head_probe import HeadProbe
from depthrate.orchestrator.executors.ray.session import NodeCheck, Session, check_nodes
from depthrate.orchestrator.executors.ray.worker import PackTrainable, put_value
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
HEAD_LOST_S = 30.0
"""Seconds without an answer after which the head counts as lost. After a minute Ray would abort this process."""
MAX_WORKERS = 100_000
STOP_WAIT_S = 60.0
"""Longest wait for stopped packs when the executor closes, in seconds."""


class Slots(NamedTuple):
    """Number of packs that a cluster can run in parallel."""

    now: int
    max: int
    """Number of such packs after the autoscaler has added all nodes."""


class RayExecutor(Executor):
    """Runs packs in the trials of one Tune run, in a separate thread for the whole launch."""

    takes_batches = True

    def __init__(
        self,
        session: Session,
        *,
        workers: int,
        gpu_share: float = 0.0,
        memory_bytes: float | None = None,
        where: str = "Ray",
        nodes: NodeCheck | None = None,
        count_slots: Callable[[], Slots] | None = None,
    ):
        """Run up to `workers` packs in parallel, each on one CPU and a share of a GPU, on usable nodes.

        `count_slots` returns the current slots of a cluster that grows and shrinks.
        """
        self.workers, self.memory_bytes = workers, memory_bytes
        self.num_nodes = 1 if count_slots is None else None
        self.device = "cuda" if gpu_share else "cpu"
        # one waiting pack per worker, so that no worker waits for the driver
        self.capacity = 2 * workers
        self._count_slots, self._slots = count_slots, Slots(workers, workers)
        self._head: HeadProbe | None = None
        self._is_lost = False
        self._session, self.gpu_share = session, gpu_share or 1.0
        self._title, self._nodes = where, nodes or NodeCheck([], [])
        # A signal handler may call put while the same thread is in get, which would deadlock other kinds of queue.
        self._ends: queue.SimpleQueue[AttemptEnd | BaseException] = queue.SimpleQueue()
        self._dispatcher = Dispatcher(self._ends, f"depthrate-{secrets.token_hex(8)}", workers)
        self._open: set[str] = set()
        self._folder: str | None = None
        self._thread = threading.Thread(target=self._run_tune, daemon=True)

    def summary(self) -> str:
        """Return the Ray cluster, its slots, and differences between its nodes and this machine as a string."""
        slots = f"{self._title}, {counted(self.workers, 'parallel pack')} on {self.device}"
        return "; ".join([slots, *self._nodes.differences[:5]])

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return the differences between the nodes and this machine."""
        return {"version_differences": "\n".join(self._nodes.differences)} if self._nodes.differences else {}

    def start(self, num_packs: int | None) -> None:
        """Connect to Ray, or start a local one.

        Raises:
            RayError: Ray cannot be started or reached.
        """
        self._session.connect()
        self._head = HeadProbe(self._session.head, self._update_slots)

    def _update_slots(self) -> None:
        """Update the slots. Runs in the probe's thread, because Ray blocks while its head does not answer."""
        if self._count_slots is not None:
            self._slots = self._count_slots()

    def _apply_slots(self) -> None:
        """Adapt the number of workers to the current and future slots."""
        if self._head is not None and self._head.silent_s > HEAD_LOST_S:
            self._is_lost = True
            raise RayLost(
                f"{self._title}: no answer from its head at {self._head.address} for {self._head.silent_s:.0f} s. Running "
                "workers save a checkpoint and exit. Check the head (ray status, gcs_server.out), then restart it or pass "
                "another --address"
            )
        if self._slots.now != self.workers or self._slots.max != self._dispatcher.workers:
            if self._slots.now != self.workers:
                log.info("%s: slots changed from %d to %d", self._title, self.workers, self._slots.now)
            self.workers, self._dispatcher.workers = self._slots.now, self._slots.max
            self.capacity = 2 * self._slots.max

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Queue packs for the workers, which Tune starts in free slots."""
        for job in jobs:
            self._open.add(job.attempt_id)
            self._dispatcher.waiting.put(job)
        if self._thread.ident is None:  # not started earlier, because an idle Tune sleeps for a second
            self._folder = tempfile.mkdtemp(prefix="dr-tune-")
            logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it reports failed trials and missing logs
            os.environ.update(TUNE_SETTINGS, TUNE_MAX_PENDING_TRIALS_PG=str(MAX_WORKERS))
            self._thread.start()

    def running(self) -> Mapping[str, str]:
        """Return the started attempts, whose IDs never change with this executor."""
        jobs = [job for worker in list(self._dispatcher.registered.values()) if (job := worker.job) is not None]
        return {job.attempt_id: job.attempt_id for job in jobs}

    def nodes_by_attempt(self) -> Mapping[str, str]:
        """Map started attempts to nodes."""
        workers = [worker for worker in list(self._dispatcher.registered.values()) if worker.host]
        return {job.attempt_id: worker.host for worker in workers if (job := worker.job) is not None}

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Assign nothing more to workers on these nodes."""
        self._dispatcher.excluded = frozenset(nodes)

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s` and return the attempts that ended.

        Raises:
            RayLost: The head is lost or Tune failed. Committed results remain.
        """
        self._apply_slots()
        ends: list[AttemptEnd] = []
        messages: list[AttemptEnd | BaseException] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._ends.get(timeout=timeout_s))
            while True:
                messages.append(self._ends.get_nowait())
        for message in messages:
            if isinstance(message, BaseException):
                raise RayLost(f"Ray Tune failed: {type(message).__name__}: {short_error(message)}") from message
            self._open.discard(message.attempt_id)
            ends.append(message)
        return ends

    def stop(self, *, is_hopeless: bool = False) -> None:
        """Ask running packs to save a checkpoint and exit, and requeue waiting packs."""
        if self._thread.ident is not None:
            put_value(self._dispatcher.stop_key, "1")
        for job in self._dispatcher.withdraw_waiting():
            self._ends.put(AttemptEnd(job.attempt_id, kind=RequeueReason.NOT_STARTED))

    def close(self) -> None:
        """End the Tune run and the connection. Packs that still run are killed."""
        if self._head is not None:
            self._head.close()
        if self._is_lost:
            self._session.abandon()
            return
        try:
            if self._thread.is_alive():
                self._dispatcher.is_over = True
                self.stop()
                wait_s = STOP_WAIT_S if not self._open or not self._session.is_connected else 5.0
                deadline = time.monotonic() + wait_s
                # Wait for the started workers only. Tune would also wait for workers that have no slot to start in.
                while self._thread.is_alive() and self._dispatcher.has_started and time.monotonic() < deadline:
                    self._thread.join(timeout=0.1)
                self._thread.join(timeout=2.0)
        finally:
            self._session.close()
            if self._folder is not None:
                self._thread.join(timeout=2.0)  # Tune records the lost workers in its folder
                shutil.rmtree(self._folder, ignore_errors=True)

    def _run_tune(self) -> None:
        resources = {"CPU": 1.0} | ({"GPU": self.gpu_share} if self.device == "cuda" else {})
        unusable = ",".join(self._nodes.unusable)
        elsewhere: dict[str, Any] = (
            {"bundle_label_selector": [{"ray.io/node-id": f"!in({unusable})"}]} if unusable else {}
        )
        outlive_memory_kills()
        try:
            tune.run(
                tune.with_resources(PackTrainable, tune.PlacementGroupFactory([resources], **elsewhere)),
                num_samples=-1,
                search_alg=WorkerSource(self._dispatcher),
                callbacks=[self._dispatcher],
                storage_path=self._folder,
                name="packs",
                trial_dirname_creator=lambda trial: str(trial.trial_id),
                raise_on_failed_trial=False,
                verbose=0,
            )
        except BaseException as error:
            self._ends.put(error)


def open_local(device: str, workers: int | None, packs_per_gpu: int) -> RayExecutor:
    """Return an executor for a local Ray, without starting it.

    Raises:
        MachineError: The device or the number of workers is not available.
    """
    machine = choose_machine(device, workers)
    has_gpus, memory_bytes = machine.device == "cuda", machine.memory_bytes
    max_parallel = len(machine.gpus) * packs_per_gpu if has_gpus else machine.workers
    workers = max(1, min(max_parallel, workers or max_parallel))
    return RayExecutor(
        Session(address=None, workers=workers, gpus=len(machine.gpus)),
        workers=workers,
        gpu_share=1 / packs_per_gpu if has_gpus else 0.0,
        memory_bytes=None if memory_bytes is None else memory_bytes / (packs_per_gpu if machine.gpus else 1),
        where="Ray on this machine",
    )


def open_cluster(address: str, device: str, workers: int | None, packs_per_gpu: int) -> RayExecutor:
    """Return an executor for an existing Ray cluster, after connecting to it and checking its nodes.

    Raises:
        ValueError: `RayError` or `MachineError` if the cluster cannot be reached or an option cannot be used.
    """
    session = Session(address=address).connect()
    nodes = check_nodes()
    memory_bytes = session.memory_per_cpu()
    gpus = int(session.max_resources().get("GPU", 0))
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not gpus):
        raise MachineError(
            f"device is {device!r}, expected auto, cpu or, with GPUs, cuda. The Ray cluster has {gpus} GPUs."
        )
    has_gpus = bool(gpus) and device != "cpu"
    name, packs_per_unit = ("GPU", packs_per_gpu) if has_gpus else ("CPU", 1)

    def count_slots() -> Slots:
        counts = [
            packs_per_unit * int(units.get(name, 0)) for units in (ray.cluster_resources(), session.max_resources())
        ]
        now, later = (max(1, min(count, workers or MAX_WORKERS, MAX_WORKERS)) for count in counts)
        return Slots(now, max(now, later))

    return RayExecutor(
        session,
        workers=count_slots().now,
        gpu_share=1 / packs_per_gpu if has_gpus else 0.0,
        memory_bytes=None if has_gpus or memory_bytes is None else USABLE_SHARE * memory_bytes,
        where=f"Ray cluster at {address}",
        nodes=nodes,
        count_slots=count_slots,
    )
