"""Job folders: check that they can be created, and remove each once its jobs are over and their trials are committed.

A job that succeeds leaves a marker in its folder. The controller is queried about jobs without a marker.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from depthrate.orchestrator.executors.slurm.submissions import jobs_folder, read_submissions
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import unfinished_names
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import all_jobs_ended
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import is_job_folder
from depthrate.storage.files.store import Store

TRIALS_FILE = "trials"
"""File in a job folder with the IDs of its trials, one per line."""
FOLDER_RETRY_DELAYS_S = (0.0, 1.0, 2.0, 4.0)
"""Delays before successive checks for ended jobs, in seconds. A job ends shortly after its last commit."""
QUERY_TIMEOUT_S = 10.0
"""Time limit for all queries together, in seconds. The next launch removes folders of jobs that end later."""


def check_jobs_folder(profile: Profile, store: Store, sweep: str) -> None:
    """Check that the folder of a sweep's job folders exists or can be created, by creating it below the existing part.

    Raises:
        SlurmError: It cannot.
    """
    folder = jobs_folder(profile, store, sweep)
    if store.local_folder is not None and folder.is_relative_to(store.local_folder):
        return  # checked with the store
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryDirectory(prefix=".depthrate-", dir=existing) as trial:
            Path(trial, *folder.relative_to(existing).parts).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SlurmError(
            f"folder of the jobs is {folder.parent}, which cannot be used: {error.strerror}. Set folder in the cluster file to "
            "a folder that all nodes see and this user can write."
        ) from None


def write_trials(folder: Path, trial_ids: Iterable[str]) -> None:
    """Create a folder for jobs that run these trials."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRIALS_FILE).write_text("\n".join(trial_ids))


def remove_finished_folders(store: Store, sweep: str, roots: Iterable[Path], profile: Profile) -> None:
    """Remove the folders of a sweep's finished jobs, named as in this profile, below `roots`.

    Raises:
        OSError: A folder or the store cannot be read (includes StoreError).
    """
    paths = [path for root in roots if root.is_dir() for path in root.iterdir()]
    folders = {path.name: path for path in paths if is_job_folder(str(path), sweep, path.name)}
    watched = {submission.name for submission in read_submissions(store, [sweep])}
    trials: dict[str, list[str]] = {}
    for name in folders.keys() - watched:
        with contextlib.suppress(OSError):  # another launch has just removed the folder
            trials[name] = (folders[name] / TRIALS_FILE).read_text().split()
    committed = take_snapshot(store).trial_ids() if any(trials.values()) else set()
    pending = {name for name, trial_ids in trials.items() if committed.issuperset(trial_ids)}
    remaining_s = QUERY_TIMEOUT_S
    for delay_s in FOLDER_RETRY_DELAYS_S:
        if not pending:
            return
        time.sleep(delay_s)
        over = {name for name in pending if all_jobs_ended(folders[name])}
        if over != pending and remaining_s > 0:
            started = time.monotonic()
            try:
                names = {profile.job_name_of(name, sweep): name for name in pending - over}
                over = pending - {names.get(job_name) for job_name in unfinished_names(names, remaining_s)}
                remaining_s -= time.monotonic() - started
            except SlurmError:
                remaining_s = 0
        for name in over:
            shutil.rmtree(folders[name], ignore_errors=True)
        pending -= over
