"""Run SLURM's own commands; every call has an end, and its failure names the command."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

TIMEOUT_S = 60.0


class SlurmError(ValueError):
    """SLURM is not here, does not answer, or refuses; the message says what was asked and what it said."""


def run_command(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Run one of SLURM's commands and return what it printed.

    Raises:
        SlurmError: it is not installed, failed, or took longer than `timeout_s` seconds.
    """
    if shutil.which(arguments[0]) is None:
        raise SlurmError(
            f"{arguments[0]} is not on the PATH; --executor slurm needs SLURM's commands: log in to a node that submits jobs"
        )
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{arguments[0]} did not answer within {timeout_s:g} s") from None
    if done.returncode:
        said = ((done.stderr or done.stdout).strip().splitlines() or ["nothing"])[-1]
        raise SlurmError(f"{' '.join(arguments[:3])} failed with code {done.returncode}: {said}")
    return done.stdout


def fields_of(line: str) -> dict[str, str]:
    """Return the `Key=Value` words of a line that `scontrol --oneliner` printed."""
    return {key: value for key, _, value in (word.partition("=") for word in line.split()) if _}
