"""Queries and requests of a job about itself: its id, restarts, remaining time, state and requeue."""

import contextlib
import os
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path

from depthrate.slurm.command import SlurmError, parse_fields, run_command
from depthrate.slurm.script import REQUEUE_CODE, START_MARKER

QUERY_TIMEOUT_S = 15.0


def job_id() -> str:
    """Return this job's id: `<array>_<index>`, or `<id>` outside arrays."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def mark_started() -> None:
    """Record for the batch script that depthrate's program has started in this job."""
    with contextlib.suppress(KeyError, OSError):  # a job of an earlier version has no marker
        Path(os.environ[START_MARKER]).touch()


def restart_count() -> int:
    """Return how many times SLURM has restarted this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def seconds_left() -> float | None:
    """Return the seconds to this job's time limit, or None if neither the controller nor the batch script reports it."""
    ends = _record().get("EndTime", "")
    try:
        return datetime.fromisoformat(ends).timestamp() - time.time()
    except ValueError:
        ends_at = os.environ.get("DEPTHRATE_ENDS_AT")
        return None if ends_at is None else float(ends_at) - time.time()


def is_ending() -> bool | None:
    """Return whether SLURM is ending this job without a requeue, as after scancel. None: the controller does not answer."""
    state = _record().get("JobState")
    # A preempted job in its grace time is RUNNING.
    return None if state is None else state in ("CANCELLED", "COMPLETING")


def requeue() -> bool:
    """Requeue this job, which ends it. Return whether the controller accepted the request.

    In a container without SLURM's commands, exit with a code that makes the batch script requeue the job.
    """
    if os.environ.get("DEPTHRATE_ENDS_AT") and shutil.which("scontrol") is None:
        sys.exit(REQUEUE_CODE)
    try:
        run_command(["scontrol", "requeue", job_id()], QUERY_TIMEOUT_S)
    except SlurmError:
        return False
    return True


def _record() -> dict[str, str]:
    try:
        return parse_fields(run_command(["scontrol", "--oneliner", "show", "job", job_id()], QUERY_TIMEOUT_S))
    except SlurmError:
        return {}
