"""Read job states: one squeue per poll, and sacct for jobs that squeue no longer lists. Both may fail temporarily."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from depthrate.slurm.answers import parse_columns, parse_integer, parse_table, parse_time
from depthrate.slurm.command import TIMEOUT_S, run_command
from depthrate.slurm.errors import SlurmError

Phase = Literal["waiting", "running", "over"]
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "RESIZING")
PHASE_BY_STATE: dict[str, tuple[Phase, str | None]] = {
    # state -> phase, and the failure kind of an ended job whose work is not done
    **dict.fromkeys(_WAITING, ("waiting", None)),
    **dict.fromkeys(_RUNNING, ("running", None)),
    **dict.fromkeys(("COMPLETED", "FAILED"), ("over", "worker_lost")),
    **dict.fromkeys(("BOOT_FAIL", "NODE_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"), ("over", "node_lost")),
    **dict.fromkeys(("PREEMPTED", "REVOKED"), ("over", "preempted")),
    **dict.fromkeys(("CANCELLED", "DEADLINE"), ("over", "cancelled")),
    "TIMEOUT": ("over", "timeout"),
    "OUT_OF_MEMORY": ("over", "out_of_memory"),
}
_COLUMNS = (
    *("ArrayJobID:24", "ArrayTaskID:24", "JobID:24", "State:24", "RestartCnt:12", "NodeList:120", "Reason:120"),
    *("exit_code:12", "StartTime:24", "EndTime:24", "Name:200"),
)
_NAME_COLUMNS = ("Name:200", "ArrayJobID:24", "State:24", "NodeList:24")
_ACCOUNTED = ("JobID", "State", "NodeList", "ExitCode", "Start", "End")
SETUP_FAILED_CODE = 113
"""Exit code of a batch script after a failed setup line of the profile. It has no other use."""


@dataclass(frozen=True)
class JobState:
    """The state of one job as the scheduler reports it."""

    state: str
    restarts: int | None = None
    """Number of restarts, or None if unknown (sacct)."""
    node: str = ""
    reason: str = ""
    exit_code: int | None = None
    """Exit code of an ended job."""
    ended_at: float | None = None
    """Time of the job's end, in seconds since the epoch."""
    name: str = ""
    """Name under which the job was submitted. Empty if unknown (sacct)."""
    signal: int | None = None
    """Signal that ended the job, or None if no signal is known."""
    started_at: float | None = None
    """Time of the job's last start, in seconds since the epoch."""

    @property
    def phase(self) -> Phase:
        """Phase: waiting, running or over. An unknown state counts as running, since giving up a live job repeats its work."""
        return PHASE_BY_STATE.get(self.state, ("running", None))[0]

    @property
    def is_definite(self) -> bool:
        """True if all processes of the job are known to have ended. On a lost node they may continue."""
        has_status = bool(self.exit_code or self.signal)
        return self.state in ("OUT_OF_MEMORY", "CANCELLED") or (self.state == "FAILED" and has_status)

    @property
    def failed_in_setup(self) -> bool:
        """True if the job ended in a setup line, before depthrate's program started."""
        return self.state == "FAILED" and self.exit_code == SETUP_FAILED_CODE

    @property
    def kind(self) -> str:
        """Failure kind of an ended job whose work is not done."""
        return PHASE_BY_STATE[self.state][1] or "worker_lost"


def parse_array_id(job_id: str) -> str:
    """Return the array id of a job. For a job outside arrays, return its id."""
    return job_id.partition("_")[0]


def array_job_ids(array_id: str, num_jobs: int) -> list[str]:
    """Return the ids of the jobs of an array. For a single job, which is not in an array, return its id."""
    return [f"{array_id}_{index}" for index in range(num_jobs)] if num_jobs > 1 else [array_id]


def squeue_states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return job -> state of these jobs and of other jobs in their arrays that the controller lists, including ended jobs.

    Raises:
        SlurmError: If the controller does not answer.
    """
    job_ids = list(job_ids)
    wanted = f"--jobs={','.join(sorted(set(map(parse_array_id, job_ids))))}"
    try:
        rows = _squeue_rows(_COLUMNS, ["--array", "--states=all", wanted])
    except SlurmError as error:
        if "Invalid job id" in str(error):  # the controller no longer lists any of them
            return {}
        raise
    listed = {}
    for row in rows:
        job = row["JobID"] if row["ArrayTaskID"] in ("N/A", "") else f"{row['ArrayJobID']}_{row['ArrayTaskID']}"
        exit_code, signal = _exit_status(row["exit_code"])
        ended = (exit_code, parse_time(row["EndTime"]), row["Name"], signal, parse_time(row["StartTime"]))
        listed[job] = JobState(
            row["State"], parse_integer(row["RestartCnt"]) or 0, row["NodeList"], row["Reason"], *ended
        )
    return _expand(listed, job_ids)


def sacct_states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return job -> state from the accounting, which lags behind the controller.

    Raises:
        SlurmError: If the accounting does not answer or does not exist.
    """
    job_ids = list(job_ids)
    return _expand(dict(_sacct_rows("--jobs=" + ",".join(sorted(set(map(parse_array_id, job_ids)))))), job_ids)


def _expand(listed: dict[str, JobState], job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return job -> state, expanding lines that represent several elements of an array.

    Elements that have not started share a line, such as `7_[4-9%10]`. After they are cancelled, the line is `7`, for all
    elements without a separate line.
    """
    shared = {parse_array_id(name): name for name in listed if name.isdigit() or "[" in name}
    states = {name: state for name, state in listed.items() if "[" not in name}
    for job_id in job_ids:
        name = shared.get(parse_array_id(job_id))
        if job_id not in states and name is not None and _covers(name, job_id):
            states[job_id] = listed[name]
    return states


def _covers(name: str, job_id: str) -> bool:
    """Return whether a line with this name, such as `7_[1,4-9%10]`, includes an element of its array."""
    elements, index = name.partition("_")[2], job_id.partition("_")[2]
    if not elements or "..." in elements:  # SLURM truncates long lists
        return True
    for first, last, step in _RANGE.findall(elements.partition("%")[0]):
        if parse_integer(index) in range(int(first), int(last or first) + 1, int(step or 1) or 1):
            return True
    return False


_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")


_WAIT_ADVICE = {
    "JobHeldUser|JobHoldMaxRequeue|launch failed requeued held": "Release them: scontrol release JOBID.",
    "JobHeldAdmin": "Only an administrator can release them.",
    "DependencyNeverSatisfied": "They never start. Cancel them, and remove the dependency from `extra`.",
    "Reservation|.*Reserved for maintenance": "They start with, or after, a reservation: scontrol show reservation.",
    "ReqNodeNotAvail|Nodes required for job|NodeDown": "Their nodes are down, drained or reserved: sinfo --list-reasons.",
    "Partition(Down|Inactive)": "They start once it is up again. Otherwise cancel them, and set another partition.",
    "PartitionTimeLimit|BadConstraints|PartitionNodeLimit|Invalid|Account|QOSNotAllowed": (
        "They cannot start. Cancel them, and correct the cluster file."
    ),
    "(QOS|Assoc)(Grp|Max)|Max.*PerAccount": "They start when other jobs of this account or QOS end: sacctmgr show qos, assoc.",
}
"""Pattern of the start of a reason why jobs wait -> advice."""


def wait_text(reason: str) -> str:
    """Return the reason why jobs wait, with advice if the wait does not end by itself."""
    advice = next((text for pattern, text in _WAIT_ADVICE.items() if re.match(pattern, reason)), "")
    return f"{reason}. {advice}" if advice else reason


def earlier_starts(job_ids: Iterable[str]) -> dict[str, list[JobState]]:
    """Return job -> final states of its ended starts, oldest first, from the accounting.

    Raises:
        SlurmError: If the accounting does not answer or does not exist.
    """
    starts: dict[str, list[JobState]] = {job_id: [] for job_id in job_ids}
    for job_id, state in _sacct_rows("--duplicates", f"--jobs={','.join(starts)}"):
        if job_id in starts and state.started_at and state.ended_at:
            starts[job_id].append(state)
    return {job_id: sorted(states, key=lambda state: state.started_at or 0.0) for job_id, states in starts.items()}


def _sacct_rows(*options: str) -> Iterator[tuple[str, JobState]]:
    command = ["sacct", "--parsable2", "--allocations", *options, f"--format={','.join(_ACCOUNTED)}"]
    for row in parse_table(run_command(command), _ACCOUNTED, "sacct"):
        exit_code, signal = _exit_status(row["ExitCode"])
        ended = (exit_code, parse_time(row["End"]), "", signal, parse_time(row["Start"]))
        state = row["State"].partition(" ")[0]  # "CANCELLED by 1000"
        yield row["JobID"], JobState(state, None, row["NodeList"].removeprefix("None assigned"), "", *ended)


def _exit_status(text: str) -> tuple[int | None, int | None]:
    """Parse `code:signal`, or a number in the format of wait(2), to (exit code, signal), possibly of a shell's child."""
    code, number = (parse_integer(part) for part in text.partition(":")[::2])
    if code is not None and ":" not in text:
        code, number = code >> 8, code & 127
    return code, number or (code - 128 if code is not None and 128 < code < 160 else None)


def _squeue_rows(columns: Sequence[str], options: Sequence[str], timeout_s: float = TIMEOUT_S) -> list[dict[str, str]]:
    command = ["squeue", "--noheader", *options, f"--Format={','.join(columns)}"]
    return parse_columns(run_command(command, timeout_s, errors="surrogateescape"), columns, "squeue")


def live_job_ids(names: Iterable[str]) -> dict[str, str]:
    """Return job name -> array id of the jobs with these names. If a name has several jobs, the last one is returned.

    Raises:
        SlurmError: If the controller does not answer.
    """
    rows = _squeue_rows(_NAME_COLUMNS, ["--states=all", f"--name={','.join(names)}"])
    # sbatch leaves a record of a job that it refuses, which has failed without a node.
    accepted = [row for row in rows if row["State"] != "FAILED" or row["NodeList"]]
    return {row["Name"]: row["ArrayJobID"] for row in sorted(accepted, key=lambda row: int(row["ArrayJobID"]))}


def unfinished_names(names: Iterable[str], timeout_s: float) -> set[str]:
    """Return the names with waiting, running or ending jobs.

    Raises:
        SlurmError: If the controller does not answer.
    """
    return {row["Name"] for row in _squeue_rows(_NAME_COLUMNS, [f"--name={','.join(names)}"], timeout_s)}
