"""Collect the progress of a launch for its watcher."""

from __future__ import annotations

from depthrate.orchestrator.launch.pack_queue import PackQueue
from depthrate.orchestrator.launch.progress import Progress, Watcher
from depthrate.orchestrator.launch.supervisor import AttemptSupervisor


class Reporter:
    """Reports the progress of a launch to its watcher."""

    def __init__(self, watch: Watcher, queue: PackQueue, supervisor: AttemptSupervisor):
        self._watch, self._queue, self._supervisor = watch, queue, supervisor

    def report(self) -> None:
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
                packs_added=queue.packs_added,
                failures=tuple(self._supervisor.failed.given_up),
            )
        )
