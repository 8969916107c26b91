"""Queries and requests of a job about itself: its id, restarts, remaining time, state and requeue."""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from depthrate.slurm.answers import parse_local_time, parse_records, parse_time
from depthrate.slurm.command import run_command
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.script import REQUEUE_CODE, START_MARKER

QUERY_TIMEOUT_S = 15.0
CLOCK_SKEW_S = 300.0
"""Maximum distance of a running job's start and end from the other side of now. A wrapper of scontrol may ignore TZ."""


def job_id() -> str:
    """Return this job's id: `<array>_<index>`, or `<id>` outside arrays."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def mark_started() -> None:
    """Record for the batch script that depthrate's program has started in this job."""
    with contextlib.suppress(OSError):  # the disk is full: the job then counts as not started, until it has a record
        Path(os.environ[START_MARKER]).touch()


def restart_count() -> int:
    """Return how many times SLURM has restarted this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def seconds_left() -> float | None:
    """Return the seconds to this job's time limit, or None if neither the controller nor the batch script reports it."""
    record, now = _record(), time.time()
    starts_at, ends_at = (parse_time(record.get(key, "")) for key in ("StartTime", "EndTime"))
    if starts_at and ends_at and not starts_at - CLOCK_SKEW_S <= now <= ends_at + CLOCK_SKEW_S:
        ends_at = parse_local_time(record["EndTime"], now)  # this job runs, so the times are not in UTC
    if ends_at is None and (of_script := os.environ.get("DEPTHRATE_ENDS_AT")):
        ends_at = float(of_script)
    return None if ends_at is None else ends_at - now


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
        answer = run_command(["scontrol", "--oneliner", "show", "job", job_id()], QUERY_TIMEOUT_S)
    except SlurmError:
        return {}
    return next(iter(parse_records(answer, "JobId")), {})
