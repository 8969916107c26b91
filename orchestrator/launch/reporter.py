"""Tells a watcher how a launch is getting on."""

from __future__ import annotations

from depthrate.orchestrator.launch.pack_queue import PackQueue
from depthrate.orchestrator.launch.progress import Progress, Watcher
from depthrate.orchestrator.launch.supervisor import AttemptSupervisor


class Reporter:
    """Tells a watcher how a launch is getting on."""

    def __init__(self, watch: Watcher, queue: PackQueue, supervisor: AttemptSupervisor):
        self._watch, self._queue, self._supervisor = watch, queue, supervisor

    def report(self) -> None:
        """Show the progress."""
        queue, running = self._queue, list(self._supervisor.running.values())
        busy = queue.peers.busy
        waiting = [entry for entry in queue.entries if not busy.isdisjoint(entry.pack.trial_ids)]
        queued = {trial_id for entry in waiting for trial_id in entry.pack.trial_ids}
        behind = [later.pack for entry in running for later in entry.then]
        self._watch(
            Progress(
                trials_done=queue.trials_done,
                packs_running=[(entry.pack, entry.beat) for entry in running if entry.beat is not None],
                packs_queued=[*(entry.pack for entry in queue.entries), *behind],
                packs_submitted=[entry.pack for entry in running if entry.beat is None],
                num_blocked=len(waiting),
                blocking_attempts=[
                    holder for holder in queue.peers.live_records if queued.intersection(holder["trial_ids"])
                ],
                packs_added=queue.packs_added,
                failures=tuple(self._supervisor.failed.given_up),
            )
        )
