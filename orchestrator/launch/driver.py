"""The loop of a launch: submit packs, poll the executor, handle ended attempts, until no pack is pending."""

import logging
import time
from collections.abc import Callable, Sequence

from depthrate.orchestrator.attempts.cancellation import forced_attempts, read_cancel_mark
from depthrate.orchestrator.attempts.events import log_event
from depthrate.orchestrator.attempts.liveness import POLL_BACKOFF_FACTOR, heartbeat_s
from depthrate.orchestrator.attempts.options import JobOptions
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.attempts.retry_policy import Backoff
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd, Executor
from depthrate.orchestrator.executors.errors import QueueFullError, SubmitError, SubmitRateError
from depthrate.orchestrator.launch.batching import QueuedPack, to_pack_trials
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.launch.outcome import Detached, Outcome, Progress, Watcher
from depthrate.orchestrator.launch.pack_queue import Feed, PackQueue
from depthrate.orchestrator.launch.supervisor import AttemptSupervisor
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.store import Store
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
SUBMIT_RETRY_DELAY_S = 30.0
"""Seconds before packs are resubmitted to a scheduler that accepted none of them."""


class Driver:
    """Runs the packs of a plan through an executor. Completed work is determined only from the store."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        executor: Executor,
        options: JobOptions,
        watch: Watcher,
        clock: Callable[[], float] = time.monotonic,
        upkeep: Callable[[Snapshot], object] = lambda snapshot: None,
        estimate_s: Callable[[Pack], float | None] = lambda pack: None,
        feed: Feed | None = None,
    ):
        self.executor, self._store, self._options, self._clock = executor, store, options, clock
        self._estimate_s = estimate_s
        """Function that estimates the seconds of a pack on one core."""
        self._sweep = plan.checked.sweep
        self._queue = PackQueue(plan, store, executor, clock, upkeep, feed)
        self._supervisor = AttemptSupervisor(store, self._sweep.name, executor, options, self._queue, clock)
        self._supervisor.add({attempt_id: QueuedPack(pack) for attempt_id, pack in plan.in_flight.items()})
        self._watch = watch
        self.stopping = self._stopped_early = self._cancelled = self._has_submitted = False
        self._cancel_mark = read_cancel_mark(store, self._sweep.name)
        self._backoff = Backoff(clock)
        self._refusal: SubmitError | None = None
        """Refusal of the last submission."""
        self._next_tick = float("-inf")

    def stop(self, *, is_hopeless: bool = False) -> None:
        """Start no more packs. Running packs save a checkpoint and end, or continue if they outlive this process."""
        if not self.stopping:
            self.stopping = True
            self.executor.stop(is_hopeless=is_hopeless)

    def run(self) -> Outcome:
        """Run until every pack is committed or given up."""
        queue, supervisor, failed = self._queue, self._supervisor, self._supervisor.failed
        with queue.peers:
            while (supervisor.running and not self._can_detach()) or (queue.has_more and not self._is_draining):
                if not self._is_draining:
                    queue.add_proposals(failure.pack for failure in failed.given_up)
                    self._submit()
                self._settle(self.executor.poll(timeout_s=0.2))
                if (now := self._clock()) >= self._next_tick:
                    self._stop_if_cancelled()
                    queue.peers.claims.renew(supervisor.trial_ids)
                    self._settle(supervisor.update())
                    self._report()
                    took_s = self._clock() - now
                    self._next_tick = now + max(heartbeat_s(self._store) / 2, POLL_BACKOFF_FACTOR * took_s)
        self._report()
        supervisor.close()
        is_cancelled = self._cancelled or failed.is_cancelled
        return Outcome(
            failed.given_up, self._is_draining and not self._stopped_early, self._stopped_early, is_cancelled
        )

    def detach(self) -> Detached:
        """Submit as many pending packs as the scheduler accepts. The jobs continue without this process."""
        queue, supervisor = self._queue, self._supervisor
        with queue.peers:
            self._submit()
            while isinstance(self._refusal, SubmitRateError):
                time.sleep(0.2)
                queue.peers.claims.renew(supervisor.trial_ids)
                self._submit()
        num_claimed = sum(not queue.peers.busy.isdisjoint(entry.pack.trial_ids) for entry in queue.entries)
        return Detached(
            len(supervisor.running), num_claimed, len(queue.entries) - num_claimed, str(self._refusal or "")
        )

    def _report(self) -> None:
        """Pass the current progress to the watcher."""
        queue, running = self._queue, list(self._supervisor.running.values())
        busy = queue.peers.busy
        blocked = [entry for entry in queue.entries if not busy.isdisjoint(entry.pack.trial_ids)]
        blocked_ids = {trial_id for entry in blocked for trial_id in entry.pack.trial_ids}
        batched = [later.pack for entry in running for later in entry.then]
        self._watch(
            Progress(
                trials_done=queue.trials_done,
                packs_running=[(entry.pack, entry.beat) for entry in running if entry.beat is not None],
                packs_queued=[*(entry.pack for entry in queue.entries), *batched],
                packs_submitted=[entry.pack for entry in running if entry.beat is None],
                num_blocked=len(blocked),
                blocking_attempts=[
                    record for record in queue.peers.live_records if blocked_ids.intersection(record["trial_ids"])
                ],
                blocking_launches=queue.peers.describe_blocking(blocked_ids),
                waiting_reasons=self.executor.waiting_reasons,
                packs_added=queue.packs_added,
                failures=tuple(self._supervisor.failed.given_up),
            )
        )

    def _can_detach(self) -> bool:
        return self.stopping and self.executor.outlives_driver

    @property
    def _is_draining(self) -> bool:
        """True if no more packs start: the launch is stopping, or jobs were cancelled while the others continue."""
        return self.stopping or self._supervisor.failed.is_cancelled

    def _stop_if_cancelled(self) -> None:
        mark = read_cancel_mark(self._store, self._sweep.name)
        if mark in (None, self._cancel_mark):
            return
        self._cancel_mark = mark
        if forced_attempts(mark) & self._supervisor.running.keys() and not self.executor.outlives_driver:
            raise KeyboardInterrupt  # acts like a second Ctrl-C, because hanging workers react to nothing else
        self._cancelled = True
        self.stop()

    def _settle(self, ends: Sequence[AttemptEnd]) -> None:
        """Handle attempts that ended. If the remaining packs would fail in the same way, start no more packs."""
        if not ends:
            return
        self._backoff.reset()
        is_hopeless = self._supervisor.settle(ends, is_stopping=self.stopping)
        not_started = self._supervisor.running.keys() - self.executor.running().keys()
        if is_hopeless and (self._queue.entries or not_started) and not self.stopping:
            self._stopped_early = True
            self.stop(is_hopeless=True)

    def _submit(self) -> None:
        """Fill the executor. Packs that a peer launch runs wait, and are dropped once it has committed them."""
        free_slots = self.executor.capacity - len(self._supervisor.running)
        if not self._queue.entries or free_slots <= 0 or self._backoff.is_waiting or self._supervisor.is_store_full:
            return
        if self._queue.poll_peers() and self.executor.outlives_driver:
            self._supervisor.adopt_submitted()
        self._refusal = None
        free_slots = self.executor.capacity - len(self._supervisor.running)
        groups = [] if self._is_draining else self._queue.take(free_slots, self._supervisor.running.values())
        if groups:
            self._submit_jobs([self._new_attempt_spec(*group) for group in groups])
        if self.stopping:  # the launch was stopped during the submission
            self.executor.stop()

    def _submit_jobs(self, jobs: list[AttemptSpec]) -> None:
        """Submit attempts. If the scheduler accepted attempts before and is now unreachable, retry later."""
        running = self._supervisor.running
        try:
            self.executor.submit(jobs)
        except QueueFullError as error:
            self._queue.put_back([running.pop(job.attempt_id) for job in error.unsubmitted])
            self._refusal = error
            log_event("pack", f"waiting for submission: {error}", count=len(error.unsubmitted), is_state=True)
            self._backoff.wait()
        except SubmitError as error:
            entries = [running.pop(job.attempt_id) for job in error.unsubmitted]
            if not running and not self._has_submitted:
                raise
            packs, self._refusal = counted(len(entries), "pack"), error
            log.warning("submission of %s failed, retrying in %g s: %s", packs, SUBMIT_RETRY_DELAY_S, error)
            for entry in entries:
                entry.not_before = self._clock() + SUBMIT_RETRY_DELAY_S
            self._queue.entries.extend(entries)
        self._has_submitted = True

    def _new_attempt_spec(self, entry: QueuedPack, *then: QueuedPack) -> AttemptSpec:
        """Register and return a new attempt of a pack and of the packs `then` that follow it in the batch."""
        job = AttemptSpec(
            attempt_id=new_attempt_id(),
            sweep=self._sweep.name,
            task=self._sweep.loaded_task,
            **vars(to_pack_trials(entry.pack)),
            pruning=self._queue.pruning(entry.pack),
            options=self._options,
            estimated_s=self._estimate_s(entry.pack),
            avoid=entry.avoid,
            shares_memory=entry.shares_memory,
            then=[to_pack_trials(later.pack) for later in then],
        )
        entry.beat, entry.heartbeat_seen_at, entry.then = None, None, list(then)
        self._supervisor.add({job.attempt_id: entry})
        return job
