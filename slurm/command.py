"""Run SLURM's own commands; every call has an end, and its failure names the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence

TIMEOUT_S = 60.0
_CONTROLLER_DOWN_HINT = (
    "jobs that run go on; try again in a minute (`scontrol ping` says whether SLURM's controller is up)"
)
CALLS: Counter[str] = Counter()
"""How often this process has called each of SLURM's commands."""
_WAITED = threading.local()
_IGNORED_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")
"""Beginnings of the variables that change what SLURM's commands do, or that tell of the job around us."""
_CLUSTER_VARIABLES = frozenset(["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"])


class SlurmError(ValueError):
    """SLURM is not here, does not answer, or refuses; the message says what was asked and what it said."""


def command_environment() -> dict[str, str]:
    """Return the environment of SLURM's commands: ours without what would change their meaning behind the cluster file."""
    return {name: value for name, value in os.environ.items() if not _is_ignored(name)}


def ignored_variables_message() -> str:
    """Say which variables of the user's are not passed on to SLURM's commands; empty if there are none."""
    names = sorted(name for name in os.environ if _is_ignored(name))
    if job_id := os.environ.get("SLURM_JOB_ID"):
        return f"this launch runs inside SLURM job {job_id}; jobs inherit nothing of it"
    return f"{', '.join(names)} not used: the cluster file says what jobs ask for" if names else ""


def _is_ignored(name: str) -> bool:
    return name.startswith(_IGNORED_PREFIXES) and name not in _CLUSTER_VARIABLES


def run_command(
    arguments: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    num_error_lines: int = 1,
    hidden_variables: Sequence[str] = (),
) -> str:
    """Run one of SLURM's commands and return what it printed; `last_words` lines of its errors come with a failure.

    Variables of our environment that are `withheld` do not reach it.

    Raises:
        SlurmError: it is not installed, failed, or took longer than `timeout_s` seconds.
    """
    if shutil.which(arguments[0]) is None:
        raise SlurmError(
            f"{arguments[0]} is not on the PATH; --executor slurm needs SLURM's commands: log in to a node that submits jobs"
        )
    CALLS[arguments[0]] += 1
    environment = {name: value for name, value in command_environment().items() if name not in hidden_variables}
    began = time.monotonic()
    try:
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{arguments[0]} did not answer within {timeout_s:g} s") from None
    finally:
        _WAITED.seconds = _waited_s() + time.monotonic() - began
    if done.returncode:
        said = " / ".join(((done.stderr or done.stdout).strip().splitlines() or ["nothing"])[-num_error_lines:])
        what_to_do = f"; {_CONTROLLER_DOWN_HINT}" if "Unable to contact slurm controller" in said else ""
        raise SlurmError(f"{' '.join(arguments[:3])} failed with code {done.returncode}: {said}{what_to_do}")
    return done.stdout


def time_outside_slurm() -> float:
    """Return the seconds on a clock of this thread that stands still while it waits for one of SLURM's commands."""
    return time.monotonic() - _waited_s()


def _waited_s() -> float:
    return getattr(_WAITED, "seconds", 0.0)


def parse_fields(line: str) -> dict[str, str]:
    """Return the `Key=Value` words of a line that `scontrol --oneliner` printed."""
    return {key: value for key, _, value in (word.partition("=") for word in line.split()) if _}
