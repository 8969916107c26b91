"""The states of jobs: one squeue a look, sacct only for what squeue no longer knows, and both may fail for a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from depthrate.slurm.command import SlurmError, run_command

Phase = Literal["waiting", "running", "over"]
STATES: dict[str, tuple[Phase, str | None]] = {
    # state -> what it is, and if it is over: the kind of failure where the job's work is not done
    "PENDING": ("waiting", None),
    "CONFIGURING": ("waiting", None),
    "REQUEUED": ("waiting", None),
    "REQUEUE_HOLD": ("waiting", None),
    "REQUEUE_FED": ("waiting", None),
    "SPECIAL_EXIT": ("waiting", None),
    "RESV_DEL_HOLD": ("waiting", None),
    "RUNNING": ("running", None),
    "COMPLETING": ("running", None),
    "SIGNALING": ("running", None),
    "STAGE_OUT": ("running", None),
    "STOPPED": ("running", None),
    "SUSPENDED": ("running", None),
    "RESIZING": ("running", None),
    "COMPLETED": ("over", "worker_lost"),
    "FAILED": ("over", "worker_lost"),
    "BOOT_FAIL": ("over", "node_lost"),
    "NODE_FAIL": ("over", "node_lost"),
    "PREEMPTED": ("over", "preempted"),
    "REVOKED": ("over", "preempted"),
    "LAUNCH_FAILED": ("over", "node_lost"),
    "RECONFIG_FAIL": ("over", "node_lost"),
    "TIMEOUT": ("over", "timeout"),
    "OUT_OF_MEMORY": ("over", "out_of_memory"),
    "CANCELLED": ("over", "cancelled"),
    "DEADLINE": ("over", "cancelled"),
}
_COLUMNS = (
    *("ArrayJobID:24", "ArrayTaskID:24", "JobID:24", "State:24", "RestartCnt:12", "NodeList:120", "Reason:120"),
    *("exit_code:12", "StartTime:24", "EndTime:24", "Name:200"),
)
_FORMAT = ",".join(_COLUMNS)
_WIDTHS = [int(column.partition(":")[2]) for column in _COLUMNS]


SETUP_FAILED_CODE = 113
"""What a batch script ends with when one of the profile's setup lines failed: nothing else of ours gives this number."""


@dataclass(frozen=True)
class JobState:
    """What the scheduler says of one job."""

    state: str
    restarts: int | None = None
    """How often it was started anew; None where unknown (sacct)."""
    node: str = ""
    reason: str = ""
    exit_code: int | None = None
    """Of a job that is over."""
    ended_at: float | None = None
    """When a job was over, in seconds since the epoch."""
    name: str = ""
    """As it was submitted; empty where unknown (sacct)."""
    signal: int | None = None
    """By which a job that is over was ended; None where it was not, or that is unknown."""
    started_at: float | None = None
    """When it was last started, in seconds since the epoch."""

    @property
    def phase(self) -> Phase:
        """Waiting, running or over; a state we do not know is taken for running, since giving a job up doubles work."""
        return STATES.get(self.state, ("running", None))[0]

    @property
    def is_definite(self) -> bool:
        """Whether all its processes are known to be gone: it failed, and said how; a node that is lost may go on computing."""
        return self.state == "OUT_OF_MEMORY" or (self.state == "FAILED" and bool(self.exit_code or self.signal))

    @property
    def failed_in_setup(self) -> bool:
        """Whether it ended in its setup lines, so that nothing of ours has run."""
        return self.state == "FAILED" and self.exit_code == SETUP_FAILED_CODE

    @property
    def kind(self) -> str:
        """The kind of failure, for a job that is over and has not done its work."""
        return STATES[self.state][1] or "worker_lost"


def squeue_states(array_ids: Sequence[str]) -> dict[str, JobState]:
    """Return job -> state of all jobs of these submissions that the controller still knows, ended ones included.

    Raises:
        SlurmError: the controller does not answer.
    """
    try:
        printed = run_command(
            ["squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(array_ids)}", f"--Format={_FORMAT}"]
        )
    except SlurmError as error:
        if "Invalid job id" in str(error):  # it knows none of them any more
            return {}
        raise
    found = {}
    for line in printed.splitlines():
        array_id, task, job_id, state, restarts, node, reason, status, start, end, name = _cells(line)
        job = job_id if task in ("N/A", "") else f"{array_id}_{task}"
        exit_code, number = (
            (int(status) >> 8, int(status) & 127) if status.isdigit() else (None, 0)
        )  # as wait() gives it
        ended = (exit_code, _epoch(end), name, _signal(exit_code or 0, number))
        found[job] = JobState(state, int(restarts or 0), node, reason, *ended, started_at=_epoch(start))
    return found


def sacct_states(array_ids: Sequence[str]) -> dict[str, JobState]:
    """Return job -> last state of these submissions, as the accounting has it; it lags and may be missing altogether.

    Raises:
        SlurmError: it does not answer, or this cluster has none.
    """
    which = f"--jobs={','.join(array_ids)}"
    printed = run_command(["sacct", "-n", "--parsable2", "--allocations", which, f"--format={_ACCOUNTED}"])
    return dict(map(_accounted, printed.splitlines()))


def earlier_starts(job_id: str) -> list[JobState]:
    """Return how each start of a job but its last ended, as the accounting has it, the first one first.

    Raises:
        SlurmError: it does not answer, or this cluster has none.
    """
    which = ["--allocations", "--duplicates", f"--jobs={job_id}"]
    printed = run_command(["sacct", "-n", "--parsable2", *which, f"--format={_ACCOUNTED}"])
    states = [state for job, state in map(_accounted, printed.splitlines()) if job == job_id and state.started_at]
    return sorted(states, key=lambda state: state.started_at or 0.0)[:-1]


_ACCOUNTED = "JobID,State,NodeList,ExitCode,Start,End"


def _accounted(line: str) -> tuple[str, JobState]:
    job_id, state, node, code, start, end = line.split("|")
    node = "" if node == "None assigned" else node
    exit_code, _, number = code.partition(":")
    state = state.split()[0] if state else ""  # "CANCELLED by 1000"
    found = JobState(state, node=node, exit_code=int(exit_code or 0), ended_at=_epoch(end), started_at=_epoch(start))
    return job_id, replace(found, signal=_signal(found.exit_code or 0, int(number or 0)))


def _signal(exit_code: int, number: int) -> int | None:
    """Return the signal that ended a job, of which a shell's exit code may speak too."""
    return number or (exit_code - 128 if 128 < exit_code < 160 else None)


def live_job_ids(names: Iterable[str]) -> dict[str, str]:
    """Return job name -> array id of the jobs that the controller has under these names, of several the last.

    Raises:
        SlurmError: the controller does not answer.
    """
    printed = run_command(
        ["squeue", "--noheader", "--states=all", f"--name={','.join(names)}", "--Format=Name:200,ArrayJobID:24"]
    )
    rows = [(line[:200].strip(), line[200:].strip()) for line in printed.splitlines()]
    return dict(sorted(rows, key=lambda row: int(row[1])))


def _epoch(text: str) -> float | None:
    """Return the seconds since the epoch of a time as SLURM writes it; None for `N/A` and the like."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _cells(line: str) -> list[str]:
    cells, start = [], 0
    for width in _WIDTHS:
        cells.append(line[start : start + width].strip())
        start += width
    return cells
