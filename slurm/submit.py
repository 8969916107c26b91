"""Submit jobs as arrays, through submitit; cancel them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.slurm.command import SlurmError, run_command
from depthrate.slurm.profile import Profile
from depthrate.slurm.states import SETUP_FAILED_CODE

if TYPE_CHECKING:
    import submitit

PARALLEL = 10_000
"""Jobs of an array that run at once where the profile sets no limit."""
MEGABYTES = 1024


def sbatch_parameters(profile: Profile, name: str, exclude: Sequence[str] = (), nodes: int = 1) -> dict[str, Any]:
    """Return what submitit is told, from a profile."""
    memory_mb = round(profile.mem_gb * MEGABYTES)
    excluded = sorted({*profile.exclude, *exclude})
    return {
        "job_name": name,
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "exclude": ",".join(excluded) or None,
        "gpus_per_node": profile.gpus or None,
        "cpus_per_task": profile.cpus,
        **({} if nodes == 1 else {"nodes": nodes, "ntasks_per_node": 1}),
        "mem": f"{memory_mb}M",
        "time": profile.walltime_min,
        "array_parallelism": profile.array_parallelism or PARALLEL,
        "signal_delay_s": profile.warning_s,
        "wckey": None,
        "setup": [
            *_setup(profile),
            "export PYTHONSAFEPATH=1",  # a user's own tasks.py in the working folder must not shadow ours
            f"export DEPTHRATE_WARNING_S={profile.warning_s}",
            "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1",
        ],
        # a job that we send back to the queue must be one that may go back there
        "additional_parameters": {"requeue": True, **profile.extra},
        # srun asks for CPUs anew unless told
        "srun_args": [f"--cpus-per-task={profile.cpus}"],
    }


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
        SlurmError: sbatch refused; nothing of this array is submitted.
    """
    import submitit

    folder.mkdir(parents=True, exist_ok=True)
    executor = _executor(profile, name, folder, exclude, nodes)
    try:
        jobs = executor.map_array(function, arguments)
    except submitit.core.utils.FailedJobError as error:
        raise SlurmError(f"sbatch refused the jobs: {error}; the script is in {folder}") from None
    except submitit.core.utils.FailedSubmissionError as error:
        raise SlurmError(f"sbatch gave no job: {error}") from None
    return [job.job_id for job in jobs]


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
    executor.update_parameters(**sbatch_parameters(profile, name, exclude, nodes))
    return executor
