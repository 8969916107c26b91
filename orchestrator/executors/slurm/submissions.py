"""Submissions, the store's records of submitted job arrays. Any process can watch, cancel or resume their jobs."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from depthrate.orchestrator.executors.base import SubmittedPack
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import JobState, array_job_ids, live_job_ids, squeue_states
from depthrate.slurm.profile import Profile
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import identity, is_job_folder, submission_path
from depthrate.storage.files.store import Store

JOB_NAME = "depthrate-{sweep}-{number}"
"""Name of a submission's jobs and of their folder. Its number is a new attempt ID."""
PLANNED_JOB_NAME = JOB_NAME.replace("{number}", "TIME_ID")
"""Job name with a placeholder, used in plans."""
SUBMIT_ACCEPT_TIMEOUT_S = 600.0
"""Age in seconds from which a submission without job IDs counts as never accepted."""
_NAMED_AT = re.compile(r"-(\d{8}T\d{6})_[0-9a-f]{12}$")


@dataclass
class Submission:
    """One job array. It is written before it is submitted, so that every job can be found."""

    name: str
    """Unique name, also of its folder."""
    sweep: str
    cluster: str
    folder: str
    """Folder with the output of the jobs."""
    packs: list[list[SubmittedPack]]
    """Packs of each job, in array order."""
    job_ids: list[str] = field(default_factory=list)
    """Job IDs in array order, empty until the scheduler has answered."""
    job_name: str = ""
    """Name of its jobs in SLURM. Default: `name`."""

    def __post_init__(self) -> None:
        self.job_name = self.job_name or self.name

    def write(self, store: Store) -> None:
        """Write the submission to the store."""
        store.write(submission_path(self.sweep, self.name), json.dumps(asdict(self)).encode(), durable=True)

    def delete(self, store: Store) -> None:
        """Delete the submission from the store, once all its jobs are over."""
        store.delete_many([submission_path(self.sweep, self.name)])

    def jobs(self) -> list[tuple[str, list[SubmittedPack]]]:
        """Return (job ID, packs) of each job."""
        return list(zip(self.job_ids, self.packs, strict=True)) if self.job_ids else []

    def was_never_accepted(self, now: float) -> bool:
        """Return whether the launch must have exited before a scheduler accepted this submission."""
        stamp = _NAMED_AT.search(self.name)
        if self.job_ids or stamp is None:
            return False
        return now - datetime.strptime(f"{stamp[1]}+0000", "%Y%m%dT%H%M%S%z").timestamp() > SUBMIT_ACCEPT_TIMEOUT_S

    def read_stderr(self, job_id: str) -> str:
        """Return the tail of a job's stderr."""
        try:
            paths = sorted(Path(self.folder).glob(f"{job_id}_*log.err"))
            return "".join(path.read_text(errors="replace")[-20_000:] for path in paths)
        except OSError:
            return ""


def read_submissions(store: Store, sweeps: Sequence[str]) -> list[Submission]:
    """Return the submissions of these sweeps that are not known to be over. Unreadable files are skipped."""
    if not sweeps:
        return []
    folders = [submission_path.folder(sweep) for sweep in sweeps]
    submissions = []
    for path, content in store.read_many(path for path in store.list_many(folders) if path.endswith(".json")):
        try:
            if not isinstance(content, OSError):
                submissions.append(parse_submission(path, content))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return sorted(submissions, key=lambda submission: submission.name)


def parse_submission(path: str, content: bytes) -> Submission:
    """Parse the file of a submission, which cannot refer to another sweep or to a folder that no launch created.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The file is not a valid submission.
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
    submission = Submission(**{**fields, "packs": packs, "job_ids": [*map(identity, fields["job_ids"])]})
    if submission_path(submission.sweep, submission.name) != path or not isinstance(submission.cluster, str):
        raise ValueError(f"submission at {path}: its sweep and name belong to another path")
    if submission.name.rpartition("_")[2] not in submission.job_name:
        raise ValueError(
            f"submission at {path}: job_name is {submission.job_name!r:.200}, without the ID of the submission"
        )
    if not is_job_folder(submission.folder, submission.sweep, submission.name):
        raise ValueError(f"submission at {path}: folder is {submission.folder!r:.200}, expected the folder of its jobs")
    if submission.job_ids and len(submission.job_ids) != len(packs):
        raise ValueError(f"submission at {path}: {len(submission.job_ids)} jobs for {len(packs)} bundles")
    return submission


def jobs_of_sweep(store: Store, sweep: str, cluster: str) -> tuple[list[Submission], dict[str, JobState]]:
    """Return the submissions of a sweep on this cluster, and job -> state from the controller.

    A user with write access to the store could name any job, so the job's name in the controller must match the submission's.

    Raises:
        SlurmError: The controller does not answer.
    """
    submissions = [submission for submission in read_submissions(store, [sweep]) if submission.cluster == cluster]
    # A launch may have exited between calling sbatch and reading its answer.
    by_name = {submission.job_name: submission for submission in submissions if not submission.job_ids}
    if by_name:
        for name, array_id in live_job_ids(by_name).items():
            by_name[name].job_ids = array_job_ids(array_id, len(by_name[name].packs))
    job_ids = {job_id for submission in submissions for job_id in submission.job_ids}
    states = squeue_states(job_ids) if job_ids else {}
    for submission in submissions:
        if any(job_id in states and states[job_id].name != submission.job_name for job_id in submission.job_ids):
            submission.job_ids = []
    job_ids = {job_id for submission in submissions for job_id in submission.job_ids}
    return submissions, {job_id: state for job_id, state in states.items() if job_id in job_ids}


def is_alive(state: JobState | None) -> bool:
    """Return whether a job waits or runs, according to the controller."""
    return state is not None and state.phase != "over"


def jobs_folder(profile: Profile, store: Store, sweep: str) -> Path:
    """Return the folder of a sweep's job folders, which all nodes must see.

    Raises:
        SlurmError: SLURM and submitit would replace a part of its path.
    """
    defaults = [root / "slurm" for root in (store.local_folder, Path.home() / ".depthrate") if root]
    for folder in [Path(os.path.abspath(Path(profile.folder).expanduser()))] if profile.folder else defaults:
        if not re.search(r"%\d*[A-Za-z%]|\\", str(folder.absolute())):  # placeholders, and what turns them off
            return folder / sweep
    raise SlurmError(f"folder is {folder}, expected a path without % and \\, which SLURM replaces. Set folder to one.")
