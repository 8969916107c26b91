"""What a job asks and tells SLURM about itself: who it is, whether it is being preempted, to go back into the queue."""

from __future__ import annotations

import os
import shutil
import sys
import time
from datetime import datetime

from depthrate.slurm.command import SlurmError, parse_fields, run_command
from depthrate.slurm.script import REQUEUE_CODE

QUERY_TIMEOUT_S = 15.0


def job_id() -> str:
    """Return this job's id: `<array>_<index>`, or `<id>` outside arrays."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def restart_count() -> int:
    """Return how often SLURM has started this job anew."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def seconds_left() -> float | None:
    """Return the seconds to this job's time limit; None if neither the controller says nor the batch script."""
    ends = _record().get("EndTime", "")
    try:
        return datetime.fromisoformat(ends).timestamp() - time.time()
    except ValueError:
        known = os.environ.get("DEPTHRATE_ENDS_AT")
        return None if known is None else float(known) - time.time()


def is_ending() -> bool | None:
    """Return whether SLURM is ending this job for good, as after scancel; None if the controller does not say."""
    state = _record().get("JobState")
    return (
        None if state is None else state in ("CANCELLED", "COMPLETING")
    )  # a preempted job in its grace time is RUNNING


def requeue() -> bool:
    """Send this job back into the queue, which ends it, and return whether the controller agreed.

    In a container without SLURM's commands the batch script around it does so, and this process ends here.
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
