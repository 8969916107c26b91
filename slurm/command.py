"""Run SLURM's commands, with a timeout and with errors that name the command."""

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence

from depthrate.slurm.errors import SlurmError

TIMEOUT_S = 60.0
_CONTROLLER_DOWN_HINT = (
    "Running jobs continue. Try again in a minute. `scontrol ping` shows whether SLURM's controller is up."
)
CALLS: Counter[str] = Counter()
"""SLURM command -> number of calls by this process."""
_WAITED = threading.local()
_IGNORED_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")
"""Prefixes of variables that change the behaviour of SLURM's commands or describe a surrounding job."""
_CLUSTER_VARIABLES = frozenset(["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"])


def command_environment() -> dict[str, str]:
    """Return this process's environment without the variables that would override the cluster file."""
    return {name: value for name, value in os.environ.items() if not _is_ignored(name)}


def ignored_variables_message() -> str:
    """Describe the user's variables that SLURM's commands do not receive. Return "" if none are set."""
    names = sorted(name for name in os.environ if _is_ignored(name))
    if job_id := os.environ.get("SLURM_JOB_ID"):
        return f"this launch runs inside SLURM job {job_id}. New jobs do not inherit its settings."
    return f"ignored: {', '.join(names)}. The cluster file defines the resources of jobs." if names else ""


def _is_ignored(name: str) -> bool:
    return name.startswith(_IGNORED_PREFIXES) and name not in _CLUSTER_VARIABLES


def run_command(
    arguments: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    num_error_lines: int = 1,
    hidden_variables: Sequence[str] = (),
    errors: str = "replace",
) -> str:
    """Run one of SLURM's commands and return its output. All commands except sbatch print times in UTC.

    Args:
        num_error_lines: Last lines of stderr that an error contains.
        hidden_variables: Variables of this process's environment that the command does not receive.
        errors: Handler of bytes that are not UTF-8.
    Raises:
        SlurmError: If the command is not installed, fails, or takes longer than `timeout_s` seconds.
    """
    if shutil.which(arguments[0]) is None:
        raise SlurmError(
            f"{arguments[0]} is not on the PATH, so this machine cannot reach SLURM. Run the command on a submit node of the "
            "cluster, or without --executor and --cluster on this machine."
        )
    CALLS[arguments[0]] += 1
    environment = {name: value for name, value in command_environment().items() if name not in hidden_variables}
    if arguments[0] != "sbatch":  # local time is ambiguous in the hour that a clock change repeats
        environment["TZ"] = "UTC"
    started = time.monotonic()
    try:
        done = subprocess.run(arguments, env=environment, capture_output=True, timeout=timeout_s, check=False)
    except OSError as error:
        raise SlurmError(f"{arguments[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{arguments[0]} did not answer within {timeout_s:g} s") from None
    finally:
        _WAITED.seconds = _waited_s() + time.monotonic() - started
    if done.returncode:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["no output"]
        message = " / ".join(lines[-num_error_lines:])
        hint = f". {_CONTROLLER_DOWN_HINT}" if "Unable to contact slurm controller" in message else ""
        raise SlurmError(f"{' '.join(arguments[:3])} failed with code {done.returncode}: {message}{hint}")
    return done.stdout.decode(errors=errors)


def time_outside_slurm() -> float:
    """Return the seconds on a clock of this thread that stops during calls of SLURM's commands."""
    return time.monotonic() - _waited_s()


def _waited_s() -> float:
    return getattr(_WAITED, "seconds", 0.0)
