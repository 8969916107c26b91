"""The folders of what jobs are made of and print: each goes once its jobs are over and their trials are committed.

A job that ends well says so in its folder; of the others the controller is asked.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from depthrate.orchestrator.executors.slurm.submissions import read_submissions
from depthrate.slurm.command import SlurmError
from depthrate.slurm.job_states import unfinished_names
from depthrate.slurm.script import all_jobs_ended
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import is_job_folder
from depthrate.storage.files.store import Store

TRIALS_FILE = "trials"
"""In a folder: the trials that its jobs run, one per line."""
FOLDER_RETRY_DELAYS_S = (0.0, 1.0, 2.0, 4.0)
"""Before each look for jobs that still end: a job is over a moment after its last commit."""
TIMEOUT_S = 10.0
"""How long all queries may take; what still ends after the last look is left to the next launch."""


def write_trials(folder: Path, trial_ids: Iterable[str]) -> None:
    """Make a folder for jobs that run these trials."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRIALS_FILE).write_text("\n".join(trial_ids))


def remove_finished_folders(store: Store, sweep: str, roots: Iterable[Path]) -> None:
    """Remove the folders below these of a sweep's jobs that are over and have nothing left to do.

    Raises:
        OSError: a folder or the store cannot be read; so is a StoreError.
    """
    paths = [path for root in roots if root.is_dir() for path in root.iterdir()]
    folders = {path.name: path for path in paths if is_job_folder(str(path), sweep, path.name)}
    watched = {submission.name for submission in read_submissions(store, [sweep])}
    trials = {name: _read_trials(folder) for name, folder in folders.items() if name not in watched}
    committed = take_snapshot(store).trial_ids() if any(trials.values()) else set()
    left = {name for name, trial_ids in trials.items() if trial_ids is not None and committed.issuperset(trial_ids)}
    left_s = TIMEOUT_S
    for pause_s in FOLDER_RETRY_DELAYS_S:
        if not left:
            return
        time.sleep(pause_s)
        over = {name for name in left if all_jobs_ended(folders[name])}
        if over != left and left_s > 0:
            began = time.monotonic()
            try:
                over |= left - unfinished_names(left - over, left_s)
                left_s -= time.monotonic() - began
            except SlurmError:
                left_s = 0
        for name in over:
            shutil.rmtree(folders[name], ignore_errors=True)
        left -= over


def _read_trials(folder: Path) -> list[str] | None:
    try:
        return (folder / TRIALS_FILE).read_text().split()
    except OSError:
        return None  # of an earlier version, which did not write them down
