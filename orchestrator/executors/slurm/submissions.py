"""What was given to a scheduler, kept in the store, so that anybody can look after it, cancel it, or go on from it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from depthrate.slurm.job_states import JobState
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import identity, is_job_folder, submission_path, submissions_folder
from depthrate.storage.files.store import Store

if TYPE_CHECKING:
    from depthrate.slurm.job_states import JobState
    from depthrate.slurm.profile import Profile

JOB_NAME = "depthrate-{sweep}-{number}"
"""The name of a submission's jobs, and of their folder; its number is an attempt's."""
PLANNED_JOB_NAME = JOB_NAME.replace("{number}", "TIME_ID")
"""The same before a number is given."""
SUBMIT_ACCEPT_TIMEOUT_S = 600.0
"""A scheduler that has not accepted a submission so long after it was named never will."""
_NAMED_AT = re.compile(r"-(\d{8}T\d{6})_[0-9a-f]{12}$")


@dataclass(frozen=True)
class SubmittedPack:
    """A pack in a job, as it was submitted."""

    attempt_id: str
    pack_id: str
    trial_ids: list[str]
    code_hash: str | None = None
    """The version of the task's code that it runs."""


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
        store.write(submission_path(self.sweep, self.name), json.dumps(asdict(self)).encode(), durable=True)

    def delete(self, store: Store) -> None:
        """Forget it: all its jobs are over."""
        store.delete_many([submission_path(self.sweep, self.name)])

    def jobs(self) -> list[tuple[str, list[SubmittedPack]]]:
        """Return (job, packs)."""
        return list(zip(self.job_ids, self.packs, strict=True)) if self.job_ids else []

    @property
    def is_launch(self) -> bool:
        """Whether its job runs a whole launch, which has packs of its own."""
        return not any(self.packs)

    def was_never_accepted(self, now: float) -> bool:
        """Whether the launch that named this must have died before a scheduler had it."""
        stamp = _NAMED_AT.search(self.name)
        if self.job_ids or stamp is None:
            return False
        return now - datetime.strptime(f"{stamp[1]}+0000", "%Y%m%dT%H%M%S%z").timestamp() > SUBMIT_ACCEPT_TIMEOUT_S

    def read_stderr(self, job_id: str) -> str:
        """Return the end of what a job printed to its error output."""
        try:
            paths = sorted(Path(self.folder).glob(f"{job_id}_*log.err"))
            return "".join(path.read_text(errors="replace")[-20_000:] for path in paths)
        except OSError:
            return ""


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
            SubmittedPack(
                identity(p["attempt_id"]),
                identity(p["pack_id"]),
                [*map(identity, p["trial_ids"])],
                None if p.get("code_hash") is None else identity(p["code_hash"]),
            )
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

    Whoever writes to the store may name any job: only those count that the controller has under the submission's name.

    Raises:
        SlurmError: the controller does not answer.
    """
    from depthrate.slurm.job_states import live_job_ids, squeue_states

    submissions = [submission for submission in read_submissions(store, [sweep]) if submission.cluster == cluster]
    # their launch died between sbatch and its answer; or they drive one, and submit themselves again on another node
    by_name = {
        submission.name: submission for submission in submissions if not submission.job_ids or submission.is_launch
    }
    if by_name:
        for name, array_id in live_job_ids(by_name).items():
            found = by_name[name]
            many = len(found.packs) > 1
            found.job_ids = [f"{array_id}_{i}" for i in range(len(found.packs))] if many else [array_id]
    ours = {job_id for each in submissions for job_id in each.job_ids}
    states = squeue_states(ours) if ours else {}
    for each in submissions:
        if any(job_id in states and states[job_id].name != each.name for job_id in each.job_ids):
            each.job_ids = []
    ours = {job_id for each in submissions for job_id in each.job_ids}
    return submissions, {job_id: state for job_id, state in states.items() if job_id in ours}


def is_alive(state: JobState | None) -> bool:
    """Whether a job waits or runs, as far as the controller knows."""
    return state is not None and state.phase != "over"


def jobs_folder(profile: Profile, store: Store, sweep: str) -> Path:
    """Return the folder of what jobs are made of and print; all nodes must see it."""
    if profile.folder:
        return Path(profile.folder).expanduser() / sweep
    return Path(store.root) / "slurm" / sweep if store.is_local else Path.home() / ".depthrate" / "slurm" / sweep
