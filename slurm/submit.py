"""Submit jobs as arrays, made by submitit; cancel them.

submitit writes the batch script and runs the function in the job. The call of sbatch is ours, because its answer may be
lost; and what a job runs lies in its folder before sbatch is called, so that a job needs nobody once it is accepted.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.slurm.command import SlurmError, run_command
from depthrate.slurm.profile import Profile, gpus_in
from depthrate.slurm.states import SETUP_FAILED_CODE, live_job_ids

if TYPE_CHECKING:
    import submitit

PARALLEL = 10_000
"""Jobs of an array that run at once where the profile sets no limit."""
MEGABYTES = 1024
SBATCH_TIMEOUT_S = 150.0
"""A cluster that is full lets sbatch wait for two minutes before it refuses."""
LOOKS_S = (0.0, 1.0, 3.0, 6.0)
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


def sbatch_parameters(
    profile: Profile, name: str, folder: Path, exclude: Sequence[str] = (), nodes: int = 1
) -> dict[str, Any]:
    """Return what submitit is told, from a profile."""
    profile = profile.alternatives()[0]
    gpus = f"{profile.gpu_type}:{profile.gpus}" if profile.gpu_type else profile.gpus or None
    excluded = sorted({*profile.exclude, *exclude})
    return {
        "job_name": name,
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "exclude": ",".join(excluded) or None,
        "exclusive": profile.exclusive or None,
        "gpus_per_node": None if gpus_in(profile.gres) else gpus,
        "gres": profile.gres,
        "cpus_per_task": profile.cpus,
        **({} if nodes == 1 else {"nodes": nodes, "ntasks_per_node": 1}),
        "mem": _megabytes(profile.mem_gb),
        "mem_per_cpu": _megabytes(profile.mem_per_cpu_gb),
        "time": profile.walltime_min,
        "array_parallelism": profile.array_parallelism or PARALLEL,
        "signal_delay_s": profile.warning_s,
        "wckey": None,
        "setup": [
            *_setup(profile),
            "export PYTHONSAFEPATH=1",  # a user's own tasks.py in the working folder must not shadow ours
            f"export DEPTHRATE_WARNING_S={profile.warning_s}",
            "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1",
            "unset SLURM_EXPORT_ENV",  # with --export=NONE srun would drop what the lines above have set
            _hand_over_work(folder),
        ],
        # a job that we send back to the queue must be one that may go back there
        "additional_parameters": {"requeue": True, **profile.extra},
        # srun asks for CPUs anew unless told
        "srun_args": [f"--cpus-per-task={profile.cpus}"],
    }


def _megabytes(gb: float | None) -> str | None:
    return None if gb is None else f"{round(gb * MEGABYTES)}M"


def _setup(profile: Profile) -> list[str]:
    """Return the setup lines, of which the first that fails ends the job and says so.

    What a sourced file or a function does inside is its own affair: only how the line ends counts.
    """
    if not profile.setup:
        return []
    says = 'echo "a setup line ended with code $code: $BASH_COMMAND" >&2'
    trap = f"code=$?; if ((${{#BASH_SOURCE[@]}} == 1)); then {says}; exit {SETUP_FAILED_CODE}; fi"
    return [f"trap '{trap}' ERR", *profile.setup, "trap - ERR"]


def batch_script(
    profile: Profile, name: str, num_jobs: int, folder: Path, exclude: Sequence[str] = (), nodes: int = 1
) -> str:
    """Return the text that sbatch would get, for people to look at before anything is submitted."""
    executor = _executor(profile, name, folder, exclude, nodes)
    if num_jobs > 1:
        executor.parameters["map_count"] = num_jobs
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return text


def submit_array(
    profile: Profile,
    name: str,
    folder: Path,
    function: Callable[[list[str]], None],
    arguments: Sequence[list[str]],
    exclude: Sequence[str] = (),
    nodes: int = 1,
) -> list[str]:
    """Submit one array with a job for each of `arguments`, and return the jobs' ids; the caller splits at the limits.

    A job of several nodes runs the function once on each.

    Raises:
        UnclearSubmissionError: nobody says whether this array is submitted.
        SlurmError: sbatch refused, a `SubmitLimitError` for lack of room; nothing of this array is submitted.
    """
    from submitit.core.utils import DelayedSubmission

    folder.mkdir(parents=True, exist_ok=True)
    for index, each in enumerate(arguments):
        DelayedSubmission(function, each).dump(folder / _work_of(str(index)))
    array_id = _send_as_some(
        profile, lambda each: batch_script(each, name, len(arguments), folder, exclude, nodes), name, folder
    )
    return [f"{array_id}_{index}" for index in range(len(arguments))] if len(arguments) > 1 else [array_id]


def _send_as_some(profile: Profile, script_of: Callable[[Profile], str], name: str, folder: Path) -> str:
    """Give a batch script to sbatch under each account and QOS in turn until one is taken, and return the job's id.

    Raises:
        SlurmError: as `_send`; of several refusals the one that time may change, else the last.
    """
    script = folder / "submission.sh"
    refusals: list[SlurmError] = []
    for each in profile.alternatives():
        script.write_text(script_of(each))
        try:
            return _send(script, name)
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


def _send(script: Path, name: str) -> str:
    """Give a batch script to sbatch and return the job's or array's id, also where only the controller knows it.

    Raises:
        UnclearSubmissionError: nobody says whether it was accepted.
        SubmitLimitError: there is no room for so many.
        SlurmError: it was not accepted for another reason.
    """
    try:
        printed = run_command(["sbatch", "--parsable", str(script)], SBATCH_TIMEOUT_S, last_words=3)
        if found := re.search(r"^(\d+)(;.*)?$", printed, re.MULTILINE):  # sites let sbatch say more than that
            return found[1]
        error = SlurmError(f"sbatch gave no job id but {printed.strip()[-200:]!r}")
    except SlurmError as refusal:
        error = refusal
    is_final = _REFUSED.search(str(error)) and not _NO_ANSWER.search(str(error))
    is_known = False
    for pause_s in LOOKS_S[: 1 if is_final else None]:
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


def _work_of(index: str) -> str:
    return f"work_{index}.pkl"


def _hand_over_work(folder: Path) -> str:
    """Return the line of bash that gives a job its own work under the name by which submitit looks for it."""
    name = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}_submitted.pkl"
    return f'ln -sf "{_work_of("${SLURM_ARRAY_TASK_ID:-0}")}" {shlex.quote(str(folder))}/"{name}"'


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """Cancel jobs, running or not; running ones are told first and get the cluster's KillWait to save their state.

    Raises:
        SlurmError: the controller does not answer.
    """
    for start in range(0, len(job_ids), 500):  # a command line has an end
        run_command(["scancel", "--quiet", *job_ids[start : start + 500]])


def _executor(profile: Profile, name: str, folder: Path, exclude: Sequence[str], nodes: int) -> submitit.SlurmExecutor:
    try:
        import submitit
    except ImportError:
        raise SlurmError("--executor slurm needs submitit: pip install 'depthrate[slurm]'") from None
    try:
        executor = submitit.SlurmExecutor(folder=folder, python=profile.python)
    except RuntimeError as error:
        raise SlurmError(f"{error}; log in to a node that submits jobs") from None
    executor.update_parameters(**sbatch_parameters(profile, name, folder, exclude, nodes))
    return executor
