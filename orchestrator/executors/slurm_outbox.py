"""How packs get into a SLURM queue: as arrays, on the books before they are submitted, as many as there is room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from depthrate.orchestrator.attempt import new_attempt_id
from depthrate.orchestrator.executors.executor import PackJob
from depthrate.orchestrator.executors.slurm_job import run_bundle
from depthrate.orchestrator.executors.slurm_lanes import Lanes
from depthrate.orchestrator.executors.slurm_room import Room
from depthrate.orchestrator.executors.slurm_submissions import Submission, SubmittedPack, jobs_folder
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.submit import (
    SubmitLimitError,
    UnclearSubmissionError,
    cancel_jobs,
    find_submitted,
    submit_array,
)
from depthrate.storage.store import Store


class Outbox:
    """Submits jobs, each a bundle of packs."""

    def __init__(self, profile: Profile, limits: Limits, store: Store, sweep: str, room: Room, lanes: Lanes):
        self._profile, self._limits, self._store, self._sweep = profile, limits, store, sweep
        self._room, self._lanes = room, lanes
        self._unclear: list[Submission] = []
        """What sbatch may or may not have accepted; its packs are submitted again once that is known."""

    def submit(
        self, bundles: Sequence[list[PackJob]], excluded: Sequence[str], alive: Callable[[], Sequence[str]]
    ) -> Iterator[Submission]:
        """Yield arrays as they are submitted, ever shorter ones where the cluster refuses; `alive` tells the jobs there are.

        Raises:
            SubmitLimitError: it takes no more for now.
            SlurmError: it refuses for another reason, or does not answer.
        """
        self._clear_up()
        left = deque(bundles)
        size = self._limits.array_size
        while left:
            room = self._room.left()
            size = min(size, len(left), size if room is None else room)
            if size == 0:
                raise SubmitLimitError(f"the cluster takes {self._room.most} jobs of this user")
            try:
                yield self._submit_array([left[index] for index in range(size)], excluded, alive())
            except SubmitLimitError:
                if size == 1 and not self._room.learn():
                    raise SlurmError("the cluster's limits take not even one job of this user") from None
                if size == 1:
                    raise
                size //= 2
            else:
                for _ in range(size):
                    left.popleft()

    def _submit_array(
        self, bundles: Sequence[list[PackJob]], excluded: Sequence[str], alive: Sequence[str]
    ) -> Submission:
        name = f"depthrate-{self._sweep}-{new_attempt_id()}"
        folder = jobs_folder(self._profile, self._store, self._sweep) / name
        packs = [
            [SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids, job.options.code_hash) for job in each]
            for each in bundles
        ]
        submission = Submission(name, self._sweep, self._limits.cluster, str(folder), packs)
        submission.write(self._store)  # first, so that a job can always be found again by its name
        try:
            arguments = [[job.to_json() for job in each] for each in bundles]
            profile = self._lanes.bounded(self._profile, len(bundles), alive)
            submission.job_ids = submit_array(profile, name, folder, run_bundle, arguments, excluded)
        except UnclearSubmissionError:
            self._unclear.append(submission)  # stays in the store, for whoever comes after us
            raise
        except SlurmError:
            submission.delete(self._store)
            raise
        submission.write(self._store)
        self._lanes.take(submission.job_ids)
        return submission

    def _clear_up(self) -> None:
        """Cancel what sbatch accepted without saying so, and forget it: its packs are about to be submitted again.

        Raises:
            SlurmError: the controller does not say whether it has those jobs.
        """
        while self._unclear:
            submission = self._unclear[-1]
            if job_ids := find_submitted(submission.name, len(submission.packs)):
                cancel_jobs(job_ids)
            submission.delete(self._store)
            self._unclear.pop()
