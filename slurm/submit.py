"""Submit jobs as arrays; cancel them.

submitit runs the function in the job. The call of sbatch is ours, because its answer may be lost; and what a job runs lies
in its folder before sbatch is called, so that a job needs nobody once it is accepted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from depthrate.slurm.command import SlurmError, run_command
from depthrate.slurm.job_states import live_job_ids
from depthrate.slurm.profile import KEY_VARIABLES, Profile
from depthrate.slurm.script import batch_script, submitit_missing_message, work_file

SBATCH_TIMEOUT_S = 150.0
"""A cluster that is full lets sbatch wait for two minutes before it refuses."""
CHECK_DELAYS_S = (0.0, 1.0, 3.0, 6.0)
"""Pauses before each look for jobs of which sbatch gave no clear answer."""
_REFUSED = re.compile(r"Batch job submission failed|error: (invalid|unrecognized|unable to open)", re.IGNORECASE)
_NO_ANSWER = re.compile(
    r"timed out|did not answer|unable to contact|connection|zero bytes|transport|unexpected message", re.IGNORECASE
)
"""What makes of a refusal something that may have been accepted after all."""
_FULL = re.compile(r"MaxSubmit|SubmitJob|job submit limit|MaxJobCount|unable to accept job", re.IGNORECASE)


class SubmitLimitError(SlurmError):
    """The cluster takes no more jobs of ours, or not so many at once."""


class UnclearSubmissionError(SlurmError):
    """sbatch gave no clear answer, and the controller does not say whether it has the jobs."""


def submit_array(
    profile: Profile,
    name: str,
    folder: Path,
    function: Callable[[list[str]], None],
    arguments: Sequence[list[str]],
    exclude: Sequence[str] = (),
    nodes: int = 1,
    elsewhere: int = 0,
) -> list[str]:
    """Submit one array with a job for each of `arguments`, and return the jobs' ids; the caller splits at the limits.

    A job of several nodes runs the function once on each. A single job that dies before the function has left its
    `begun_marker` submits itself again under the same name, on another node, up to `elsewhere` times.

    Raises:
        UnclearSubmissionError: nobody says whether this array is submitted.
        SlurmError: sbatch refused, a `SubmitLimitError` for lack of room; nothing of this array is submitted.
    """
    try:
        from submitit.core.utils import DelayedSubmission
    except ImportError as error:
        raise SlurmError(submitit_missing_message(error)) from None

    folder.mkdir(parents=True, exist_ok=True)
    for index, each in enumerate(arguments):
        DelayedSubmission(function, each).dump(folder / work_file(str(index)))
    count = len(arguments)
    array_id = _submit_first_accepted(
        profile, lambda each: batch_script(each, name, count, folder, exclude, nodes, elsewhere), name, folder
    )
    return [f"{array_id}_{index}" for index in range(len(arguments))] if len(arguments) > 1 else [array_id]


def _submit_first_accepted(profile: Profile, script_of: Callable[[Profile], str], name: str, folder: Path) -> str:
    """Give a batch script to sbatch under each account and QOS in turn until one is taken, and return the job's id.

    Raises:
        SlurmError: as `_send`; of several refusals the one that time may change, else the last.
    """
    script = folder / "submission.sh"
    refusals: list[SlurmError] = []
    for alternative in profile.alternatives():
        script.write_text(script_of(alternative))
        try:
            return _send(script, name, KEY_VARIABLES if profile.credentials else ())
        except UnclearSubmissionError:
            raise
        except SlurmError as error:
            refusals.append(error)
    raise next((error for error in refusals if isinstance(error, SubmitLimitError)), refusals[-1])


def find_submitted(name: str, num_jobs: int) -> list[str]:
    """Return the ids of the jobs that the controller has under a submission's name; none if it has none.

    Raises:
        SlurmError: the controller does not answer.
    """
    array_id = live_job_ids([name]).get(name)
    if array_id is None:
        return []
    return [f"{array_id}_{index}" for index in range(num_jobs)] if num_jobs > 1 else [array_id]


def _send(script: Path, name: str, withheld: Sequence[str]) -> str:
    """Give a batch script to sbatch and return the job's or array's id, also where only the controller knows it.

    sbatch takes our environment along, but for the variables that are `withheld`.

    Raises:
        UnclearSubmissionError: nobody says whether it was accepted.
        SubmitLimitError: there is no room for so many.
        SlurmError: it was not accepted for another reason.
    """
    try:
        printed = run_command(
            ["sbatch", "--parsable", str(script)], SBATCH_TIMEOUT_S, num_error_lines=3, hidden_variables=withheld
        )
        if found := re.search(r"^(\d+)(;.*)?$", printed, re.MULTILINE):  # sites let sbatch say more than that
            return found[1]
        error = SlurmError(f"sbatch gave no job id but {printed.strip()[-200:]!r}")
    except SlurmError as refusal:
        error = refusal
    is_final = _REFUSED.search(str(error)) and not _NO_ANSWER.search(str(error))
    is_known = False
    for pause_s in CHECK_DELAYS_S[: 1 if is_final else None]:
        time.sleep(pause_s)
        try:
            if job_ids := find_submitted(name, 1):
                return job_ids[0]
        except SlurmError:  # the controller is away
            continue
        is_known = True
    if is_final or is_known:
        kind = SubmitLimitError if _FULL.search(str(error)) else SlurmError
        raise kind(f"sbatch refused the jobs: {error}; the script is {script}")
    raise UnclearSubmissionError(f"sbatch gave no answer, and whether the jobs were accepted cannot be seen: {error}")


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """Cancel jobs, running or not; running ones are told first and get the cluster's KillWait to save their state.

    Raises:
        SlurmError: the controller does not answer.
    """
    for start in range(0, len(job_ids), 500):  # a command line has an end
        run_command(["scancel", "--quiet", *job_ids[start : start + 500]])
