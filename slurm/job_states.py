"""The states of jobs: one squeue a look, sacct only for what squeue no longer knows, and both may fail for a while."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from depthrate.slurm.command import TIMEOUT_S, SlurmError, run_command

Phase = Literal["waiting", "running", "over"]
PHASE_BY_STATE: dict[str, tuple[Phase, str | None]] = {
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
        return PHASE_BY_STATE.get(self.state, ("running", None))[0]

    @property
    def is_definite(self) -> bool:
        """Whether all its processes are known to be gone: it failed, and said how; a node that is lost may go on computing."""
        has_status = bool(self.exit_code or self.signal)
        return self.state in ("OUT_OF_MEMORY", "CANCELLED") or (self.state == "FAILED" and has_status)

    @property
    def failed_in_setup(self) -> bool:
        """Whether it ended in its setup lines, so that nothing of ours has run."""
        return self.state == "FAILED" and self.exit_code == SETUP_FAILED_CODE

    @property
    def kind(self) -> str:
        """The kind of failure, for a job that is over and has not done its work."""
        return PHASE_BY_STATE[self.state][1] or "worker_lost"


def parse_array_id(job_id: str) -> str:
    """Return the array that a job belongs to; a job outside arrays is its own."""
    return job_id.partition("_")[0]


def squeue_states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return job -> state of these jobs and all others in their arrays that the controller knows, ended ones included.

    Raises:
        SlurmError: the controller does not answer.
    """
    job_ids = list(job_ids)
    wanted = f"--jobs={','.join(sorted(set(map(parse_array_id, job_ids))))}"
    try:
        printed = run_command(["squeue", "--noheader", "--array", "--states=all", wanted, f"--Format={_FORMAT}"])
    except SlurmError as error:
        if "Invalid job id" in str(error):  # it knows none of them any more
            return {}
        raise
    listed = {}
    for line in printed.splitlines():
        array_id, task, job_id, state, restarts, node, reason, status, start, end, name = _split_cells(line)
        job = job_id if task in ("N/A", "") else f"{array_id}_{task}"
        exit_code, number = (
            (int(status) >> 8, int(status) & 127) if status.isdigit() else (None, 0)
        )  # as wait() gives it
        ended = (exit_code, _epoch(end), name, _signal(exit_code or 0, number))
        listed[job] = JobState(state, int(restarts or 0), node, reason, *ended, started_at=_epoch(start))
    return _expand(listed, job_ids)


def sacct_states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return the same from the accounting; it lags and may be missing altogether.

    Raises:
        SlurmError: it does not answer, or this cluster has none.
    """
    job_ids = list(job_ids)
    return _expand(dict(_sacct_rows("--jobs=" + ",".join(sorted(set(map(parse_array_id, job_ids)))))), job_ids)


def _expand(listed: dict[str, JobState], job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return job -> state where one line may stand for many elements of an array.

    Elements that have not begun share a line: `7_[4-9%10]`, or `7` alone once they were cancelled, for all that have no line
    of their own.
    """
    shared = {parse_array_id(name): name for name in listed if name.isdigit() or "[" in name}
    states = {name: state for name, state in listed.items() if "[" not in name}
    for job_id in job_ids:
        name = shared.get(parse_array_id(job_id))
        if job_id not in states and name is not None and _covers(name, job_id):
            states[job_id] = listed[name]
    return states


def _covers(name: str, job_id: str) -> bool:
    """Whether a line under this name, such as `7_[1,4-9%10]`, stands for an element of its array."""
    elements, index = name.partition("_")[2], job_id.partition("_")[2]
    if not elements or "..." in elements:  # a long list is cut off
        return True
    for first, last, step in _RANGE.findall(elements.partition("%")[0]):
        if index and int(index) in range(int(first), int(last or first) + 1, int(step or 1)):
            return True
    return False


_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def earlier_starts(job_id: str) -> list[JobState]:
    """Return how each start of a job but its last ended, as the accounting has it, the first one first.

    Raises:
        SlurmError: it does not answer, or this cluster has none.
    """
    states = [state for job, state in _sacct_rows("--duplicates", f"--jobs={job_id}") if job == job_id]
    return sorted((state for state in states if state.started_at), key=lambda state: state.started_at or 0.0)[:-1]


def _sacct_rows(*options: str) -> Iterator[tuple[str, JobState]]:
    columns = "--format=JobID,State,NodeList,ExitCode,Start,End"
    command = ["sacct", "--noheader", "--parsable2", "--allocations", *options, columns]
    for line in run_command(command).splitlines():
        job_id, state, node, status, start, end = line.split("|")
        exit_code, _, number = status.partition(":")
        code = int(exit_code or 0)
        yield (
            job_id,
            JobState(
                state.split()[0] if state else "",  # "CANCELLED by 1000"
                node="" if node == "None assigned" else node,
                exit_code=code,
                ended_at=_epoch(end),
                signal=_signal(code, int(number or 0)),
                started_at=_epoch(start),
            ),
        )


def _signal(exit_code: int, number: int) -> int | None:
    """Return the signal that ended a job, of which a shell's exit code may speak too."""
    return number or (exit_code - 128 if 128 < exit_code < 160 else None)


def live_job_ids(names: Iterable[str]) -> dict[str, str]:
    """Return job name -> array id of the jobs that the controller has under these names, of several the last.

    Raises:
        SlurmError: the controller does not answer.
    """
    rows = _named_jobs(names, "--states=all")
    return dict(sorted(rows, key=lambda row: int(row[1])))


def unfinished_names(names: Iterable[str], timeout_s: float) -> set[str]:
    """Return the names under which the controller has jobs that wait, run or end.

    Raises:
        SlurmError: the controller does not answer.
    """
    return {name for name, _ in _named_jobs(names, timeout_s=timeout_s)}


def _named_jobs(names: Iterable[str], *options: str, timeout_s: float = TIMEOUT_S) -> list[tuple[str, str]]:
    """Return (name, array) of jobs."""
    wanted = [f"--name={','.join(names)}", "--Format=Name:200,ArrayJobID:24"]
    printed = run_command(["squeue", "--noheader", *options, *wanted], timeout_s)
    return [(line[:200].strip(), line[200:].strip()) for line in printed.splitlines()]


def _epoch(text: str) -> float | None:
    """Return the seconds since the epoch of a time as SLURM writes it; None for `N/A` and the like."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _split_cells(line: str) -> list[str]:
    cells, start = [], 0
    for width in _WIDTHS:
        cells.append(line[start : start + width].strip())
        start += width
    return cells
