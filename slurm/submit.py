"""Submit job arrays, cancel jobs, and exclude nodes from waiting ones.

submitit runs the function in the job. This module calls sbatch itself, because its answer may be lost. It writes a job's work
to the job's folder before the call, so that an accepted job needs no other process.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from depthrate.slurm.command import run_command
from depthrate.slurm.errors import SlurmError, SubmitLimitError, UnclearSubmissionError
from depthrate.slurm.job_states import array_job_ids, live_job_ids
from depthrate.slurm.profile import KEY_VARIABLES, Profile
from depthrate.slurm.script import FAILED_STARTS, batch_script, import_submitit, work_file

log = logging.getLogger("depthrate")
SBATCH_TIMEOUT_S = 150.0
"""Timeout of sbatch in seconds. On a full cluster it waits for two minutes before it refuses."""
CHECK_DELAYS_S = (0.0, 1.0, 3.0, 6.0)
"""Delays in seconds before each check for the jobs after an unclear answer from sbatch."""
_REFUSED = re.compile(r"Batch job submission failed|error: (invalid|unrecognized|unable to open)", re.IGNORECASE)
_NO_ANSWER = re.compile(
    r"timed out|did not answer|unable to contact|connection|zero bytes|transport|unexpected message", re.IGNORECASE
)
"""Errors of sbatch after which it may nevertheless have accepted the jobs."""
_FULL = re.compile(r"MaxSubmit|SubmitJob|job submit limit|MaxJobCount|unable to accept job", re.IGNORECASE)


def submit_array(
    profile: Profile,
    name: str,
    folder: Path,
    function: Callable[[list[str]], None],
    arguments: Sequence[list[str]],
    exclude: Sequence[str] = (),
) -> list[str]:
    """Submit one array with one job per element of `arguments`. The caller keeps it within the array limits.

    Returns:
        The ids of the jobs.
    Raises:
        UnclearSubmissionError: If it is unknown whether the array is submitted.
        SlurmError: If sbatch refused (`SubmitLimitError` for a submit limit). No job of the array is submitted.
    """
    delayed_submission = import_submitit().core.utils.DelayedSubmission
    (folder / FAILED_STARTS).mkdir(parents=True, exist_ok=True)
    for index, job_arguments in enumerate(arguments):
        delayed_submission(function, job_arguments).dump(folder / work_file(str(index)))
    script = folder / "submission.sh"
    refusals: list[SlurmError] = []
    for alternative in profile.alternatives():
        script.write_text(batch_script(alternative, name, len(arguments), folder, exclude))
        try:
            array_id = _send(script, name, KEY_VARIABLES if profile.credentials else ())
            return array_job_ids(array_id, len(arguments))
        except UnclearSubmissionError:
            raise
        except SlurmError as error:
            refusals.append(error)
    # A submit limit may lift with time, so it is the most useful of several refusals.
    raise next((error for error in refusals if isinstance(error, SubmitLimitError)), refusals[-1])


def find_submitted(name: str, num_jobs: int) -> list[str]:
    """Return the ids of the jobs that the controller has under a submission's name.

    Raises:
        SlurmError: If the controller does not answer.
    """
    array_id = live_job_ids([name]).get(name)
    return [] if array_id is None else array_job_ids(array_id, num_jobs)


def _send(script: Path, name: str, withheld: Sequence[str]) -> str:
    """Call sbatch without the `withheld` variables. Return the id of the job or array, printed or from the controller."""
    try:
        printed = run_command(
            ["sbatch", "--parsable", str(script)], SBATCH_TIMEOUT_S, num_error_lines=3, hidden_variables=withheld
        )
        if match := re.search(r"^([0-9]+)(;.*)?$", printed, re.MULTILINE):  # at some sites sbatch prints more lines
            return match[1]
        error = SlurmError(f"sbatch printed no job id but {printed.strip()[-200:]!r}")
    except SlurmError as refusal:
        error = refusal
    is_known = bool(_REFUSED.search(str(error))) and not _NO_ANSWER.search(str(error))
    for pause_s in () if is_known else CHECK_DELAYS_S:
        time.sleep(pause_s)
        try:
            if job_ids := find_submitted(name, 1):
                return job_ids[0]
        except SlurmError:  # the controller does not answer
            continue
        is_known = True
    if is_known:
        kind = SubmitLimitError if _FULL.search(str(error)) else SlurmError
        raise kind(f"sbatch refused the jobs: {error}. The script is {script}.")
    raise UnclearSubmissionError(
        f"sbatch gave no clear answer, and it is unknown whether it accepted the jobs: {error}"
    )


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """Cancel waiting and running jobs. Running ones get SIGTERM and the cluster's KillWait to save a checkpoint.

    Raises:
        SlurmError: If the controller does not answer.
    """
    for start in range(0, len(job_ids), 500):  # the length of a command line is limited
        run_command(["scancel", "--quiet", *job_ids[start : start + 500]])


def exclude_nodes(array_ids: Iterable[str], nodes: Sequence[str]) -> None:
    """Exclude nodes for the waiting jobs of these arrays. Running jobs are not affected."""
    for array_id in array_ids:
        try:
            run_command(["scontrol", "update", f"JobId={array_id}", f"ExcNodeList={','.join(nodes)}"])
        except SlurmError as error:  # also raised if only some of the array's jobs are still waiting
            log.info("running jobs of array %s stay on their nodes: %s", array_id, error)
