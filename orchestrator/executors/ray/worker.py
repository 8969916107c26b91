"""A worker on Ray: a Tune trial that takes one pack after another as long as there are any.

So Tune's cost of a trial (an actor, a placement group) is not paid for every pack. Packs and orders go to it through Ray's
key-value store.
"""

from __future__ import annotations

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

from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.orchestrator.executors.ray.asha import asha_rule
from depthrate.orchestrator.executors.ray.head_probe import HeadProbe, is_orphan
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag

STOP_POLL_INTERVAL_S = 0.5
"""How often a busy worker looks whether it should stop."""
ORDER_POLL_INTERVAL_S = 0.02
"""How often an idle worker looks for its next pack."""
HEAD_LOST_S = 20.0
"""A head that was silent for so long is gone; Ray itself waits for a minute, and then saves nothing."""
CHECKPOINT_TIMEOUT_S = 60.0
"""How long a pack may take to save its state when its worker has lost Ray."""
ORPHAN_EXIT_CODE = 71
"""Exit code of such a worker."""
LINGER_S = 15.0
"""How long an idle worker waits for a pack before it gives its CPU or GPU back; a new one takes seconds to start."""


def put_value(key: str, value: str) -> None:
    """Leave a text under a key that every process of the cluster can read."""
    internal_kv._internal_kv_put(key.encode(), value.encode())


def get_value(key: str) -> str | None:
    """Return the text under a key; None if there is none."""
    value = internal_kv._internal_kv_get(key.encode())
    return None if value is None else value.decode()


def delete_value(key: str) -> None:
    """Forget a key."""
    internal_kv._internal_kv_del(key.encode())


def host_key(orders: str) -> str:
    """Return the key under which a worker says on which node it runs."""
    return f"{orders}-host"


class PackTrainable(tune.Trainable):
    """A worker: a step of it is one pack, run as every other executor runs it, or a stretch between two reports."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin to look for the sign to stop."""
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
        """Carry out the next order; what comes of a pack stands in the store."""
        order = self._next_order()
        if order is None:
            return {"done": True}
        self._is_busy = True
        try:
            return self._carry_out(order)
        finally:
            self._is_busy = False

    def _carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._pack is not None:
            return self._result(self._pack.resume(order["left_out"]))
        if order.get("hold"):  # its node is avoided: it keeps the place, since another worker would get it
            self._linger_s = math.inf
            return {"done": False}
        self._linger_s = LINGER_S
        job = AttemptSpec.from_json(order["job"])
        if asha_rule(job) is None:
            run_job(job, self._stop)
            return {"done": False, "ended": True}
        self._pack = _WatchedPack(job, self._stop)
        return self._result(self._pack.resume([]))

    def cleanup(self) -> None:
        """Let a pack that is asked to stop save its checkpoint."""
        self._stop.set("its worker ends")
        while self._pack is not None and self._pack.resume([]) is not None:
            pass

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Keep nothing: packs keep their checkpoints in the store."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing was kept."""

    def _next_order(self) -> dict[str, Any] | None:
        """Return what the driver wants next; None if that is nothing, for too long or because all is over."""
        give_up_at = time.monotonic() + self._linger_s
        while self._pack is not None or not (self._stop.is_set or self._is_stop_requested()):
            order = json.loads(get_value(self._orders) or "{}")
            if order.get("number") == self._num_orders:
                self._num_orders += 1
                return dict(order)
            if time.monotonic() > give_up_at:
                return None
            time.sleep(ORDER_POLL_INTERVAL_S)
        return None

    def _result(self, report: str | None) -> dict[str, Any]:
        if report is None:
            self._pack = None
            return {"done": False, "ended": True}
        return {"done": False, "report": report}

    def _is_stop_requested(self) -> bool:
        return get_value(self._stop_key) is not None

    def _poll_stop(self) -> None:
        while not self._stop.is_set:
            time.sleep(STOP_POLL_INTERVAL_S)
            if self._is_stop_requested():
                self._stop.set("asked to stop")

    def _exit_if_orphaned(self) -> None:
        """End this process where nobody is left to work for: its pack saves a checkpoint, and it takes no other."""
        while not is_orphan(self._parent) and self._head.silent_s < HEAD_LOST_S:
            time.sleep(STOP_POLL_INTERVAL_S)
        what = "its Ray node has ended" if is_orphan(self._parent) else "Ray's head does not answer"
        self._stop.set(what)
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
        time.sleep(STOP_POLL_INTERVAL_S)  # for the answer that nothing more is done
        while self._is_busy and time.monotonic() < deadline:
            time.sleep(STOP_POLL_INTERVAL_S)
        os._exit(ORPHAN_EXIT_CODE)


class _WatchedPack:
    """A pack in a thread of its own that waits at each report until it is said which trials go on."""

    def __init__(self, job: AttemptSpec, stop: StopFlag):
        self._job, self._stop = job, stop
        self._reports: queue.Queue[str | None] = queue.Queue()
        self._answers: queue.Queue[list[str]] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def resume(self, left_out: list[str]) -> str | None:
        """Train to the next report and return it, or None at the end."""
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
