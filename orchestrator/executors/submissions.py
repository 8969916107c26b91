"""What was given to a scheduler, kept in the store, so that anybody can look after it, cancel it, or go on from it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from depthrate.storage.json_file import read_object
from depthrate.storage.layout import identity, is_job_folder, submission_path, submissions_folder
from depthrate.storage.store import Store

if TYPE_CHECKING:
    from depthrate.slurm.states import JobState


@dataclass(frozen=True)
class SubmittedPack:
    """A pack in a job, as it was submitted."""

    attempt_id: str
    pack_id: str
    trial_ids: list[str]


@dataclass
class Submission:
    """One array of jobs; it is in the store before the scheduler has it, so that no job is ever unknown."""

    name: str
    """The name of its jobs, which no other submission has."""
    sweep: str
    cluster: str
    folder: str
    """What the jobs print is below it."""
    packs: list[list[SubmittedPack]]
    """Of each job, in the array's order."""
    job_ids: list[str] = field(default_factory=list)
    """Empty until the scheduler has answered."""

    def write(self, store: Store) -> None:
        """Put it into the store."""
        store.write(submission_path(self.sweep, self.name), json.dumps(asdict(self)).encode())

    def delete(self, store: Store) -> None:
        """Forget it: all its jobs are over."""
        store.delete_many([submission_path(self.sweep, self.name)])

    def jobs(self) -> list[tuple[str, list[SubmittedPack]]]:
        """Return (job, packs)."""
        return list(zip(self.job_ids, self.packs, strict=True)) if self.job_ids else []


def read_submissions(store: Store, sweeps: Sequence[str]) -> list[Submission]:
    """Return what was submitted for these sweeps and is not known to be over; unreadable files are passed over."""
    if not sweeps:
        return []
    folders = [submissions_folder(sweep) for sweep in sweeps]
    found = []
    for path, content in store.read_many(path for path in store.list_many(folders) if path.endswith(".json")):
        try:
            if not isinstance(content, OSError):
                found.append(parse_submission(path, content))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return sorted(found, key=lambda submission: submission.name)


def parse_submission(path: str, content: bytes) -> Submission:
    """Return what a file says was submitted; it cannot speak of another sweep, nor of folders that no launch made.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no such file.
    """
    fields = read_object(content)
    packs = [
        [
            SubmittedPack(identity(p["attempt_id"]), identity(p["pack_id"]), [*map(identity, p["trial_ids"])])
            for p in job
        ]
        for job in fields["packs"]
    ]
    found = Submission(**{**fields, "packs": packs, "job_ids": [*map(identity, fields["job_ids"])]})
    if submission_path(found.sweep, found.name) != path or not isinstance(found.cluster, str):
        raise ValueError("it does not stand where it says")
    if not is_job_folder(found.folder, found.sweep, found.name):
        raise ValueError(f"{found.folder!r:.200} is no folder of its jobs")
    if found.job_ids and len(found.job_ids) != len(packs):
        raise ValueError(f"it has {len(found.job_ids)} jobs for {len(packs)} bundles")
    return found


def jobs_of_sweep(store: Store, sweep: str, cluster: str) -> tuple[list[Submission], dict[str, JobState]]:
    """Return what was submitted to this cluster for a sweep, and job -> state as the controller knows it.

    Raises:
        SlurmError: the controller does not answer.
    """
    from depthrate.slurm.states import live_job_ids, squeue_states

    submissions = [each for each in read_submissions(store, [sweep]) if each.cluster == cluster]
    nameless = {each.name: each for each in submissions if not each.job_ids}
    if nameless:  # their launch died between sbatch and its answer
        for name, array_id in live_job_ids(nameless).items():
            found = nameless[name]
            many = len(found.packs) > 1
            found.job_ids = [f"{array_id}_{i}" for i in range(len(found.packs))] if many else [array_id]
    arrays = sorted({job_id.partition("_")[0] for each in submissions for job_id in each.job_ids})
    return submissions, squeue_states(arrays) if arrays else {}


def job_counts(store: Store, sweep: str) -> dict[str, Any] | None:
    """Return how many of a sweep's SLURM jobs wait and run, and why they wait; None where it has none or SLURM is silent."""
    if not read_submissions(store, [sweep]):
        return None
    from depthrate.slurm.command import SlurmError
    from depthrate.slurm.limits import read_limits

    try:
        submissions, states = jobs_of_sweep(store, sweep, read_limits().cluster)
    except SlurmError:
        return None
    ours = {job_id for each in submissions for job_id in each.job_ids}
    known = [states[job_id] for job_id in ours if job_id in states]
    return {
        "waiting": sum(state.phase == "waiting" for state in known),
        "running": sum(state.phase == "running" for state in known),
        "reasons": dict(Counter(state.reason for state in known if state.phase == "waiting").most_common()),
    }
