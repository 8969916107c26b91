"""Ray workers: a worker is a Tune trial that runs one pack after another.

This saves Tune's overhead per trial (an actor and a placement group) for each pack. Workers receive packs and orders through
Ray's key-value store.
"""

import json
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
import ray
from ray import tune
from ray.experimental import internal_kv

from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.ray.head_probe import HeadProbe
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag, raise_oom_score

STOP_POLL_INTERVAL_S = 0.5
"""Seconds between checks for a stop request."""
ORDER_POLL_INTERVAL_S = 0.02
"""Seconds between checks of an idle worker for its next order."""
HEAD_LOST_S = 20.0
"""Seconds without an answer after which the head counts as lost. Ray waits for a minute, and then aborts the worker."""
CHECKPOINT_TIMEOUT_S = 60.0
"""Seconds for a pack to save a checkpoint once its worker has lost Ray."""
ORPHAN_EXIT_CODE = 71
"""Exit code of a worker that has lost Ray."""
LINGER_S = 15.0
"""Time in seconds that an idle worker waits before it releases its CPU or GPU. Starting a new worker takes seconds."""


def put_value(key: str, value: str) -> None:
    """Store a value under a key, for every process of the cluster."""
    internal_kv._internal_kv_put(key.encode(), value.encode())


def get_value(key: str) -> str | None:
    """Return the value of a key, or None."""
    value = internal_kv._internal_kv_get(key.encode())
    return None if value is None else value.decode()


def delete_value(key: str) -> None:
    """Delete a key."""
    internal_kv._internal_kv_del(key.encode())


def asha_rule(job: AttemptSpec) -> Mapping[str, Any] | None:
    """Return the ASHA rule of a pack's trials, if they have one."""
    return next((rule for rule in job.pruning or () if rule is not None and rule.get("rule") == "asha"), None)


def host_key(orders: str) -> str:
    """Return the key of a worker's node."""
    return f"{orders}-host"


class PackTrainable(tune.Trainable):
    """A worker. One step runs a pack, or trains it up to its next report."""

    def setup(self, config: dict[str, Any]) -> None:
        """Publish this worker's node and start its threads."""
        raise_oom_score()
        self._orders, self._stop_key = config["orders"], config["stop_key"]
        self._linger_s = LINGER_S
        put_value(host_key(self._orders), socket.gethostname())
        self._stop = StopFlag()
        self._num_orders = 0
        self._pack: _WatchedPack | None = None
        self._is_busy = False
        self._parent, self._head = os.getppid(), HeadProbe(ray.get_runtime_context().gcs_address)
        threading.Thread(target=self._poll_stop, daemon=True).start()
        threading.Thread(target=self._exit_if_orphaned, daemon=True).start()

    def step(self) -> dict[str, Any]:
        """Execute the next order. Results of a pack go to the store."""
        order = self._next_order()
        if order is None:
            return {"done": True}
        self._is_busy = True
        try:
            if order.get("hold"):  # node excluded: occupy the slot, so that no other worker starts there
                self._linger_s = math.inf
                return {"done": False}
            if self._pack is None:
                self._linger_s = LINGER_S
                job = AttemptSpec.from_json(order["job"])
                if asha_rule(job) is None:
                    run_job(job, self._stop)
                    return {"done": False, "ended": True}
                self._pack = _WatchedPack(job, self._stop)
            report = self._pack.resume(order.get("left_out", []))
            if report is None:
                self._pack = None
                return {"done": False, "ended": True}
            return {"done": False, "report": report}
        finally:
            self._is_busy = False

    def cleanup(self) -> None:
        """Stop the current pack after it has saved a checkpoint."""
        self._stop.set("its worker exits")
        while self._pack is not None and self._pack.resume([]) is not None:
            pass

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: packs save their checkpoints to the store."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: packs load their checkpoints from the store."""

    def _next_order(self) -> dict[str, Any] | None:
        """Return the driver's next order, or None after a stop request or a long wait."""
        deadline = time.monotonic() + self._linger_s
        while self._pack is not None or not (self._stop.is_set or self._is_stop_requested()):
            order = json.loads(get_value(self._orders) or "{}")
            if order.get("number") == self._num_orders:
                self._num_orders += 1
                return dict(order)
            if time.monotonic() > deadline:
                return None
            time.sleep(ORDER_POLL_INTERVAL_S)
        return None

    def _is_stop_requested(self) -> bool:
        return get_value(self._stop_key) is not None

    def _poll_stop(self) -> None:
        while not self._stop.is_set:
            time.sleep(STOP_POLL_INTERVAL_S)
            if self._is_stop_requested():
                self._stop.set("asked to stop")

    def _exit_if_orphaned(self) -> None:
        """Exit once this worker has lost its node or the head, after its pack has saved a checkpoint."""
        while os.getppid() == self._parent and self._head.silent_s < HEAD_LOST_S:
            time.sleep(STOP_POLL_INTERVAL_S)
        self._stop.set("Ray's head does not answer" if os.getppid() == self._parent else "its Ray node has exited")
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
        time.sleep(STOP_POLL_INTERVAL_S)  # leave time to report that this worker is done
        while self._is_busy and time.monotonic() < deadline:
            time.sleep(STOP_POLL_INTERVAL_S)
        os._exit(ORPHAN_EXIT_CODE)


class _WatchedPack:
    """A pack in a separate thread, which waits at each report for the trials to prune."""

    def __init__(self, job: AttemptSpec, stop: StopFlag):
        self._job, self._stop = job, stop
        self._reports: queue.Queue[str | None] = queue.Queue()
        self._answers: queue.Queue[list[str]] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def resume(self, left_out: list[str]) -> str | None:
        """Train up to the next report and return it, or None at the end. `left_out` contains the trials to prune."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._answers.put(left_out)
        return self._reports.get()

    def _run(self) -> None:
        try:
            run_job(self._job, self._stop, self._await_answer)
        finally:
            self._reports.put(None)

    def _await_answer(self, step: int, values: Mapping[str, float]) -> list[str]:
        if self._stop.is_set:
            return []
        self._reports.put(json.dumps({"step": step, "values": values}))
        return self._answers.get()
