"""Between the driver and Tune: which worker gets which pack, how each ended, when another worker is needed."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Mapping
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from depthrate.orchestrator.executors.base import AttemptEnd, AttemptSpec, RequeueReason
from depthrate.orchestrator.executors.ray.asha import AshaRungs, asha_rule
from depthrate.orchestrator.executors.ray.errors import describe_exit, error_of, kind_of
from depthrate.orchestrator.executors.ray.worker import delete_value, get_value, host_key, put_value
from depthrate.storage.tables.states import FailureKind

START_TIMEOUT_S = 180.0
"""How long workers may fail to start before no more are tried: Ray notices a dead node, and we a dead head, sooner."""


class Dispatcher(tune.Callback):
    """Gives packs to Tune's workers and tells the driver how each ended; it lives in Tune's thread."""

    def __init__(self, ends: queue.SimpleQueue[AttemptEnd | BaseException], prefix: str, workers: int):
        self._ends, self._prefix = ends, prefix
        self.workers = workers
        """That there may be now; the driver changes it as the cluster does."""
        self.stop_key = f"{prefix}-stop"
        self.waiting: queue.SimpleQueue[AttemptSpec] = queue.SimpleQueue()
        self.assigned: dict[str, AttemptSpec | None] = {}
        """Of each worker, also those that have not started, its pack."""
        self.is_over = False
        self._idle: set[str] = set()
        """Workers that have started and wait for a pack."""
        self._num_orders: dict[str, int] = {}
        self._failing_since: float | None = None
        """Since when workers have failed to start, and none has."""
        self.hosts: dict[str, str] = {}
        """Of each worker that has started, its node."""
        self.excluded: frozenset[str] = frozenset()
        """Nodes whose workers get nothing more; the driver changes it. They stay, or Tune would start others there."""
        self._parked: set[str] = set()
        """Workers that were told to stay without a pack."""
        self._rungs: dict[str, AshaRungs] = {}
        """Of each study, how its trials compare."""

    @property
    def needs_worker(self) -> bool:
        """Whether more packs lie ready than there are workers without one."""
        free = sum(job is None and worker not in self._parked for worker, job in self.assigned.items())
        return len(self.assigned) < self.workers and self.waiting.qsize() > free

    @property
    def has_started(self) -> bool:
        """Whether a worker has started and not ended."""
        return bool(self._num_orders)

    def register_worker(self, trial_id: str) -> dict[str, str]:
        """Note a worker and return what it needs to know."""
        self.assigned[trial_id] = None
        return {"orders": self._orders_key(trial_id), "stop_key": self.stop_key}

    def withdraw_waiting(self) -> list[AttemptSpec]:
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
        self._failing_since = None
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
            self._ends.put(AttemptEnd(job.attempt_id, node=self.hosts.get(trial.trial_id, "")))
            self._give_pack(trial.trial_id)
        elif "report" in result:
            report = json.loads(result["report"])
            self._order(trial.trial_id, left_out=self._prune(job, report["step"], report["values"]))

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Put the pack back that a worker got when it had just given up waiting for one."""
        job = self._forget(trial.trial_id)
        if job is not None:
            self._ends.put(AttemptEnd(job.attempt_id, kind=RequeueReason.NOT_STARTED))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Report the pack whose worker or node is gone."""
        has_started = trial.trial_id in self._num_orders
        host = self.hosts.get(trial.trial_id, "")
        job = self._forget(trial.trial_id)
        if not has_started:  # a pack waits for that, or we would try again and again at once
            with contextlib.suppress(queue.Empty):
                job = self.waiting.get_nowait()
        if job is not None:
            error = error_of(trial)
            kind = kind_of(error) if has_started else self._classify_start_failure(error)
            death = describe_exit(error)
            if kind is FailureKind.OUT_OF_MEMORY:
                death += "; a node with more memory is needed, or smaller packs"
            self._ends.put(AttemptEnd(job.attempt_id, death, kind, node=host, scheduler_facts={"host": host, "pid": 0}))

    def _classify_start_failure(self, error: BaseException) -> FailureKind:
        """Return what it is that a worker did not start: a node's doing, unless none has started for long."""
        kind = kind_of(error)
        if kind is not FailureKind.WORKER_LOST:
            return kind
        if self.has_started:
            self._failing_since = None
            return FailureKind.NOT_BEGUN
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        is_long = time.monotonic() - self._failing_since > START_TIMEOUT_S
        return FailureKind.FAILED_TO_START_ANYWHERE if is_long else FailureKind.NOT_BEGUN

    def _give_pack(self, trial_id: str) -> None:
        self.assigned[trial_id] = None
        self._idle.add(trial_id)
        host = self._find_host(trial_id)
        if host in self.excluded:
            if trial_id not in self._parked:
                self._parked.add(trial_id)
                self._order(trial_id, hold=True)
            return
        if (job := self._pop_job(host)) is not None:
            self._parked.discard(trial_id)
            self.assigned[trial_id] = job
            self._idle.discard(trial_id)
            self._order(trial_id, job=job.to_json())

    def _find_host(self, trial_id: str) -> str:
        """Return the node on which a worker runs; empty where it has not said so."""
        if trial_id not in self.hosts and (host := get_value(host_key(self._orders_key(trial_id)))):
            self.hosts[trial_id] = host
        return self.hosts.get(trial_id, "")

    def _pop_job(self, host: str) -> AttemptSpec | None:
        """Take the first pack that lies ready and has not failed on this node; one that has, where there is no other node."""
        passed: list[AttemptSpec] = []
        chosen = None
        others = set(self.hosts.values()) - self.excluded - {host}
        with contextlib.suppress(queue.Empty):
            while chosen is None:
                job = self.waiting.get_nowait()
                if host in job.avoid and others.difference(job.avoid):
                    passed.append(job)
                else:
                    chosen = job
        for job in passed:
            self.waiting.put(job)
        return chosen

    def _order(self, trial_id: str, **order: Any) -> None:
        put_value(self._orders_key(trial_id), json.dumps({"number": self._num_orders[trial_id], **order}))
        self._num_orders[trial_id] += 1

    def _forget(self, trial_id: str) -> AttemptSpec | None:
        self._idle.discard(trial_id)
        self._parked.discard(trial_id)
        self.hosts.pop(trial_id, None)
        if self._num_orders.pop(trial_id, None) is not None:
            delete_value(self._orders_key(trial_id))
            delete_value(host_key(self._orders_key(trial_id)))
        return self.assigned.pop(trial_id, None)

    def _orders_key(self, trial_id: str) -> str:
        return f"{self._prefix}-{trial_id}"

    def _prune(self, job: AttemptSpec, step: int, values: Mapping[str, float]) -> list[str]:
        rule = asha_rule(job)
        assert rule is not None
        if rule["study"] not in self._rungs:
            self._rungs[rule["study"]] = AshaRungs(rule)
        return self._rungs[rule["study"]].prune(step, values)


class WorkerSource(Searcher):
    """Tells Tune to start a worker whenever one is needed."""

    def __init__(self, dispatcher: Dispatcher):
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
        return self._dispatcher.register_worker(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing to learn."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing was kept."""
