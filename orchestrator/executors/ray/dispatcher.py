"""Link between the driver and Tune: assigns packs to workers, reports their ends, and requests workers."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from depthrate.orchestrator.executors.base import AttemptEnd, AttemptSpec, RequeueReason
from depthrate.orchestrator.executors.ray.errors import describe_exit, error_of, kind_of
from depthrate.orchestrator.executors.ray.worker import asha_rule, delete_value, get_value, host_key, put_value
from depthrate.storage.tables.states import FailureKind

START_TIMEOUT_S = 180.0
"""Duration of failed starts, in seconds, after which no more workers are started. Lost nodes and heads are detected sooner."""


class Dispatcher(tune.Callback):
    """Assigns packs to Tune's workers and reports their ends to the driver. It runs in Tune's thread."""

    def __init__(self, ends: queue.SimpleQueue[AttemptEnd | BaseException], prefix: str, workers: int):
        self._ends, self._prefix = ends, prefix
        self.workers = workers
        """Largest number of workers, which the driver adapts to the cluster."""
        self.stop_key = f"{prefix}-stop"
        self.waiting: queue.SimpleQueue[AttemptSpec] = queue.SimpleQueue()
        self.assigned: dict[str, AttemptSpec | None] = {}
        """Worker -> its pack, including workers that have not started."""
        self.is_over = False
        self._idle: set[str] = set()
        """Started workers without a pack."""
        self._num_orders: dict[str, int] = {}
        self._failing_since: float | None = None
        """Time since which every start of a worker has failed."""
        self.hosts: dict[str, str] = {}
        """Started worker -> its node."""
        self.excluded: frozenset[str] = frozenset()
        """Nodes whose workers get no packs, set by the driver. The workers keep running, or Tune would start new ones there.
        """
        self._parked: set[str] = set()
        """Workers ordered to wait without a pack."""
        self._rungs: dict[str, AshaRungs] = {}
        """Study -> its rungs."""

    @property
    def needs_worker(self) -> bool:
        """Whether more packs wait than workers are idle."""
        free = sum(job is None and worker not in self._parked for worker, job in self.assigned.items())
        return len(self.assigned) < self.workers and self.waiting.qsize() > free

    @property
    def has_started(self) -> bool:
        """Whether any started worker has not ended."""
        return bool(self._num_orders)

    def register_worker(self, trial_id: str) -> dict[str, str]:
        """Register a worker and return its configuration."""
        self.assigned[trial_id] = None
        return {"orders": self._orders_key(trial_id), "stop_key": self.stop_key}

    def withdraw_waiting(self) -> list[AttemptSpec]:
        """Remove and return all packs that have no worker."""
        jobs = []
        with contextlib.suppress(queue.Empty):
            while True:
                jobs.append(self.waiting.get_nowait())
        return jobs

    def on_step_begin(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        """Assign new packs to idle workers."""
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
        """Report an ended pack and assign the next one, or reply with the trials of a pack to prune."""
        job = self.assigned.get(trial.trial_id)
        if job is None:
            return
        if result.get("ended"):
            self._ends.put(AttemptEnd(job.attempt_id, node=self.hosts.get(trial.trial_id, "")))
            self._give_pack(trial.trial_id)
        elif "report" in result:
            report, rule = json.loads(result["report"]), asha_rule(job)
            assert rule is not None
            if rule["study"] not in self._rungs:
                self._rungs[rule["study"]] = AshaRungs(rule)
            pruned = self._rungs[rule["study"]].prune(report["step"], report["values"])
            self._order(trial.trial_id, left_out=pruned)

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Requeue a pack assigned to a worker that had just stopped waiting."""
        job = self._forget(trial.trial_id)
        if job is not None:
            self._ends.put(AttemptEnd(job.attempt_id, kind=RequeueReason.NOT_STARTED))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Report the pack of a lost worker or node."""
        has_started = trial.trial_id in self._num_orders
        host = self.hosts.get(trial.trial_id, "")
        job = self._forget(trial.trial_id)
        if not has_started:  # charge the failure to a waiting pack, whose retry delay then limits the starts
            with contextlib.suppress(queue.Empty):
                job = self.waiting.get_nowait()
        if job is not None:
            error = error_of(trial)
            kind = kind_of(error) if has_started else self._classify_start_failure(error)
            message = describe_exit(error)
            if kind is FailureKind.OUT_OF_MEMORY:
                message += ". Use a node with more memory, or smaller packs."
            self._ends.put(
                AttemptEnd(job.attempt_id, message, kind, node=host, scheduler_facts={"host": host, "pid": 0})
            )

    def _classify_start_failure(self, error: BaseException) -> FailureKind:
        """Return the failure kind of a worker that did not start: its node's fault, unless all starts have failed for long."""
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
        """Return the node of a worker, or an empty str if the worker has not reported it yet."""
        if trial_id not in self.hosts and (host := get_value(host_key(self._orders_key(trial_id)))):
            self.hosts[trial_id] = host
        return self.hosts.get(trial_id, "")

    def _pop_job(self, host: str) -> AttemptSpec | None:
        """Take the first waiting pack, except packs that failed on this node and can run on another."""
        skipped: list[AttemptSpec] = []
        selected = None
        other_hosts = set(self.hosts.values()) - self.excluded - {host}
        with contextlib.suppress(queue.Empty):
            while selected is None:
                job = self.waiting.get_nowait()
                if host in job.avoid and other_hosts.difference(job.avoid):
                    skipped.append(job)
                else:
                    selected = job
        for job in skipped:
            self.waiting.put(job)
        return selected

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


class AshaRungs:
    """Asynchronous successive halving over the trials in all packs of a study (Li et al. 2020, algorithm 2)."""

    def __init__(self, rule: Mapping[str, Any]):
        self._asha: Any = ASHAScheduler(
            time_attr="step",
            metric="value",
            mode="max" if rule["maximize"] else "min",
            max_t=10**9,  # unbounded, because trials end by themselves
            grace_period=rule["from_step"],
            reduction_factor=rule["factor"],
        )
        self._trial_ids: set[str] = set()

    def prune(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Return the trials to prune at this step."""
        pruned = []
        for trial_id, value in values.items():
            trial = SimpleNamespace(trial_id=trial_id)  # not a Tune trial, but the scheduler only reads the ID
            if trial_id not in self._trial_ids:
                self._trial_ids.add(trial_id)
                self._asha.on_trial_add(None, trial)
            decision = self._asha.on_trial_result(None, trial, {"step": step, "value": value})
            if decision == ASHAScheduler.STOP or not math.isfinite(value):
                pruned.append(trial_id)
        return pruned


class WorkerSource(Searcher):
    """Search algorithm that makes Tune start a worker whenever one is needed."""

    def __init__(self, dispatcher: Dispatcher):
        super().__init__()
        self._dispatcher = dispatcher

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of a new worker, None if no worker is needed, or FINISHED."""
        if self._dispatcher.is_over:
            return Searcher.FINISHED
        if not self._dispatcher.needs_worker:
            if not self._dispatcher.assigned:
                time.sleep(0.05)  # Tune would call this in a busy loop
            return None
        return self._dispatcher.register_worker(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Do nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""
