"""Retry failed packs, split them or give them up, and detect when the remaining packs would fail in the same way."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from depthrate.orchestrator.attempts.events import GIVEN_UP, log_event
from depthrate.orchestrator.attempts.node_health import NodeHealth
from depthrate.orchestrator.attempts.retry_policy import (
    STOP_AFTER_PACKS,
    Failure,
    FailureAction,
    decide,
    error_pattern,
    retry_delay_s,
)
from depthrate.orchestrator.executors.base import Executor
from depthrate.orchestrator.launch.batching import QueuedPack
from depthrate.orchestrator.launch.launch_plan import split_pack
from depthrate.orchestrator.launch.outcome import PackFailure
from depthrate.orchestrator.launch.pack_queue import PackQueue
from depthrate.storage.files.paths import checkpoint_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import FailureKind


@dataclass
class _Failed:
    """A pack whose attempt failed, and the outcome for the pack."""

    entry: QueuedPack
    failure: PackFailure
    outcome: str = "retried"


class FailedPacks:
    """Requeues failed packs or gives them up."""

    def __init__(
        self,
        store: Store,
        queue: PackQueue,
        health: NodeHealth,
        executor: Executor,
        clock: Callable[[], float],
    ):
        self._store, self._queue, self._health, self._clock = store, queue, health, clock
        self._executor = executor
        self.given_up: list[PackFailure] = []
        self.is_cancelled = False
        """True if an attempt ended because its job was cancelled."""
        self._given_up_by_error = Counter[str]()
        self._retried_by_error = defaultdict[str, list[_Failed]](list)
        """Error pattern -> packs that failed with it before any trial was committed."""
        self._unreported: list[_Failed] = []

    def add(self, entry: QueuedPack, kind: FailureKind, error: str | None, node: str) -> bool:
        """Retry, split or give up a failed pack. Return whether the remaining packs would fail in the same way."""
        entry.failures.append(Failure(node, kind))
        entry.shares_memory &= kind is not FailureKind.OUT_OF_MEMORY
        error = error or "the attempt left no record"
        failed = _Failed(entry, PackFailure(entry.pack, error, node))
        self._unreported.append(failed)
        match decide(entry.failures, len(entry.pack.trials), self._health.unhealthy, self._has_other_nodes):
            case FailureAction.GIVE_UP:
                self._give_up(failed)
                pattern = error_pattern(error)
                self._given_up_by_error[pattern] += 1
                is_common = self._given_up_by_error[pattern] >= STOP_AFTER_PACKS
                return is_common or kind is FailureKind.FAILED_TO_START_ANYWHERE
            case FailureAction.STOP:
                failed.outcome = "left pending, submission stopped"
                self._queue.put_back([entry])
                self.is_cancelled = True
            case FailureAction.SPLIT:
                failed.outcome = "split in two"
                with contextlib.suppress(OSError):
                    self._store.delete(checkpoint_path.folder(entry.pack.pack_id))
                others = [failure for failure in entry.failures if failure.kind is not kind]
                apart = partial(QueuedPack, runs_alone=True, shares_memory=False)
                self._queue.put_back([apart(half, list(others)) for half in split_pack(entry.pack)])
            case FailureAction.RETRY:
                entry.not_before = self._clock() + retry_delay_s(entry.failures)
                self._queue.put_back([entry])
                if kind in (FailureKind.TASK, FailureKind.CODE) and not self._queue.has_progressed:
                    return self._give_up_if_every_node_fails(failed)
        return False

    def _has_other_nodes(self, nodes: Collection[str]) -> bool:
        return self._executor.num_nodes is None or self._executor.num_nodes > len(nodes)

    def _give_up(self, failed: _Failed) -> None:
        failed.outcome = GIVEN_UP
        self.given_up.append(failed.failure)

    def _give_up_if_every_node_fails(self, failed: _Failed) -> bool:
        """Give up the packs with the same error if it has occurred on every node and no trial has succeeded.

        A retry would only fail again, after waiting for another job.
        """
        alike = self._retried_by_error[error_pattern(failed.failure.error)]
        alike.append(failed)
        nodes = {other.failure.node for other in alike if other.failure.node}
        packs = {other.entry.pack.pack_id for other in alike}
        if len(packs) < STOP_AFTER_PACKS or len(nodes) < 2 or not self._health.nodes <= nodes:
            return False
        last_failures = {other.entry: other for other in alike}
        for entry in self._queue.remove(last_failures):
            self._give_up(last_failures[entry])
        return True

    def report(self) -> None:
        """Log the failures since the last call, each with the outcome for its pack."""
        for failed in self._unreported:
            log_event("pack", failed.failure.error, where=failed.failure.node, outcome=failed.outcome)
        self._unreported.clear()
