"""What is left to tidy up when a submission's jobs are over: its record in the store, and the folder of its jobs."""

from __future__ import annotations

import shutil
from pathlib import Path

from depthrate.orchestrator.executors.slurm.queue import array_of
from depthrate.orchestrator.executors.slurm.submissions import Submission, is_alive
from depthrate.slurm.states import JobState
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, StoreError


class FinishedFolders:
    """The folders of submissions that are over; those go of which all packs were done, the others may say why not."""

    def __init__(self, store: Store):
        self._store = store
        self._cache = SnapshotCache()
        self._done: list[Submission] = []

    def strike_off(self, submission: Submission) -> None:
        """Take a submission off the books, and note its folder if all its packs were done."""
        submission.delete(self._store)
        if not submission.job_ids:
            return
        try:
            committed = take_snapshot(self._store, cache=self._cache).trial_ids()
        except StoreError:
            return
        if all(committed.issuperset(pack.trial_ids) for packs in submission.packs for pack in packs):
            self._done.append(submission)

    def arrays(self) -> list[str]:
        """Return the arrays whose folders are to be removed."""
        return sorted({array_of(each.job_ids[0]) for each in self._done})

    def remove(self, states: dict[str, JobState]) -> None:
        """Remove them, but for those into which a job still writes its end."""
        alive = {job_id for job_id, state in states.items() if is_alive(state)}
        for submission in [each for each in self._done if alive.isdisjoint(each.job_ids)]:
            shutil.rmtree(Path(submission.folder), ignore_errors=True)
            self._done.remove(submission)
