"""Link between the driver and Tune: assigns packs to workers, reports their ends, and requests workers."""

import contextlib
import json
import math
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from depthrate.orchestrator.attempts.record import SchedulerFacts
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd, RequeueReason
from depthrate.orchestrator.executors.ray.errors import describe_exit, error_of, kind_of
from depthrate.orchestrator.executors.ray.worker import asha_rule, delete_value, get_value, host_key, put_value
from depthrate.storage.tables.states import FailureKind

START_TIMEOUT_S = 180.0
"""Duration of failed starts, in seconds, after which no more workers are started. Lost nodes and heads are detected sooner."""


@dataclass
class TuneWorker:
    """A worker that Tune was asked to start."""

    job: AttemptSpec | None = None
    """Its pack."""
    num_orders: int | None = None
    """Number of orders that it was given. None before it has started."""
    host: str = ""
    """Its node. Empty until it has reported the node."""
    is_parked: bool = False
    """True if it was ordered to wait without a pack."""


class Dispatcher(tune.Callback):
    """Assigns packs to Tune's workers and reports their ends to the driver. It runs in Tune's thread."""

    def __init__(self, ends: queue.SimpleQueue[AttemptEnd | BaseException], prefix: str, workers: int):
        self._ends, self._prefix = ends, prefix
        self.workers = workers
        """Largest number of workers, which the driver adapts to the cluster."""
        self.stop_key = f"{prefix}-stop"
        self.waiting: queue.SimpleQueue[AttemptSpec] = queue.SimpleQueue()
        self.registered: dict[str, TuneWorker] = {}
        """ID of the Tune trial -> worker, including workers that have not started."""
        self.is_over = False
        self._failing_since: float | None = None
        """Time since which every start of a worker has failed."""
        self.excluded: frozenset[str] = frozenset()
        """Nodes whose workers get no packs, set by the driver. The workers keep running, or Tune would start new ones there.
        """
        self._rungs: dict[str, AshaRungs] = {}
        """Study -> its rungs."""

    @property
    def needs_worker(self) -> bool:
        """Whether more packs wait than workers are idle."""
        free = sum(worker.job is None and not worker.is_parked for worker in self.registered.values())
        return len(self.registered) < self.workers and self.waiting.qsize() > free

    @property
    def has_started(self) -> bool:
        """Whether any started worker has not ended."""
        return any(worker.num_orders is not None for worker in list(self.registered.values()))

    def register_worker(self, trial_id: str) -> dict[str, str]:
        """Register a worker and return its configuration."""
        self.registered[trial_id] = TuneWorker()
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
        for trial_id, worker in self.registered.items():
            if worker.num_orders is not None and worker.job is None:
                self._give_pack(trial_id)

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Give a worker its first pack."""
        self._failing_since = None
        self.registered[trial.trial_id].num_orders = 0
        self._give_pack(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        """Report an ended pack and assign the next one, or reply with the trials of a pack to prune."""
        worker = self.registered.get(trial.trial_id, TuneWorker())
        if (job := worker.job) is None:
            return
        if result.get("ended"):
            self._ends.put(AttemptEnd(job.attempt_id, node=worker.host))
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
        if (job := self._forget(trial.trial_id).job) is not None:
            self._ends.put(AttemptEnd(job.attempt_id, kind=RequeueReason.NOT_STARTED))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Report the pack of a lost worker or node."""
        worker = self._forget(trial.trial_id)
        has_started, host, job = worker.num_orders is not None, worker.host, worker.job
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
                AttemptEnd(job.attempt_id, message, kind, node=host, scheduler_facts=SchedulerFacts(host=host, pid=0))
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
        worker = self.registered[trial_id]
        worker.job = None
        worker.host = worker.host or get_value(host_key(self._orders_key(trial_id))) or ""
        if worker.host in self.excluded:
            if not worker.is_parked:
                worker.is_parked = True
                self._order(trial_id, hold=True)
        elif (job := self._pop_job(worker.host)) is not None:
            worker.job, worker.is_parked = job, False
            self._order(trial_id, job=job.to_json())

    def _pop_job(self, host: str) -> AttemptSpec | None:
        """Take the first waiting pack, except packs that failed on this node and can run on another."""
        skipped: list[AttemptSpec] = []
        selected = None
        other_hosts = {worker.host for worker in self.registered.values()} - self.excluded - {host, ""}
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
        worker = self.registered[trial_id]
        number = worker.num_orders or 0
        put_value(self._orders_key(trial_id), json.dumps({"number": number, **order}))
        worker.num_orders = number + 1

    def _forget(self, trial_id: str) -> TuneWorker:
        worker = self.registered.pop(trial_id, TuneWorker())
        if worker.num_orders is not None:
            delete_value(self._orders_key(trial_id))
            delete_value(host_key(self._orders_key(trial_id)))
        return worker

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
            if not self._dispatcher.registered:
                time.sleep(0.05)  # Tune would call this in a busy loop
            return None
        return self._dispatcher.register_worker(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Do nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""
