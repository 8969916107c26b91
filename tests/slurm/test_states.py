"""Lines of squeue and sacct that represent many elements of an array, as SLURM 22.05 prints them."""

from collections.abc import Callable

import pytest

from depthrate.slurm import job_states
from depthrate.slurm.job_states import earlier_starts, sacct_states, squeue_states, wait_text

ARRAY = [f"7_{index}" for index in range(12)]
Programs = Callable[..., None]


def squeue_line(task: str, job_id: str, state: str, node: str = "") -> str:
    cells = ("7", task, job_id, state, "0", node, "None", "0", "N/A", "N/A", "a")
    return "".join(
        f"{cell:<{width}}"
        for cell, width in zip(cells, [int(c.partition(":")[2]) for c in job_states._COLUMNS], strict=True)
    )


def test_cancelled_elements_share_a_line(programs: Programs) -> None:
    lines = [squeue_line("N/A", "7", "CANCELLED"), squeue_line("0", "8", "COMPLETING", "n1")]
    programs(squeue=f"echo '{lines[0]}'; echo '{lines[1]}'")
    states = squeue_states(ARRAY)
    assert [states[job].state for job in ARRAY] == ["COMPLETING", *["CANCELLED"] * 11]
    assert squeue_states(["9_0"]).get("9_0") is None, "a line of another array is ignored"


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("7_[4-9%10]", range(4, 10)),
        ("7_[4-9]", range(4, 10)),
        ("7_[1,3,5-7]", (1, 3, 5, 6, 7)),
        ("7_[2-10:4%3]", (2, 6, 10)),
        ("7_[1,3,...]", range(1, 12)),
        ("7", range(1, 12)),
    ],
)
def test_waiting_elements_share_a_line_of_the_accounting(
    programs: Programs, name: str, covered: tuple[int, ...]
) -> None:
    lines = ["7_0|COMPLETED|n1|0:0|2026-11-23T23:58:09|2026-11-23T23:58:12"]
    lines.append(f"{name}|CANCELLED by 0|None assigned|0:0|None|2026-11-23T23:58:16")
    programs(sacct=f"echo '{lines[0]}'; echo '{lines[1]}'")
    states = sacct_states(ARRAY)
    assert states["7_0"].state == "COMPLETED"
    assert [job for job in ARRAY[1:] if job in states] == [f"7_{index}" for index in covered]
    assert {states[f"7_{index}"].kind for index in covered} == {"cancelled"}
    assert {states[f"7_{index}"].node for index in covered} == {""}


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("JobHeldUser", "scontrol release"),
        ("JobHeldAdmin", "administrator"),
        ("DependencyNeverSatisfied", "Cancel them"),
        ("Reservation", "scontrol show reservation"),
        ("ReqNodeNotAvail, UnavailableNodes:n2", "sinfo --list-reasons"),
        ("ReqNodeNotAvail, Reserved for maintenance", "scontrol show reservation"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "sinfo"),
        ("QOSMaxJobsPerUserLimit", "when other jobs"),
        ("PartitionTimeLimit", "cluster file"),
    ],
)
def test_unusual_waits_have_advice(reason: str, advice: str) -> None:
    assert wait_text(reason).startswith(f"{reason}. ") and advice in wait_text(reason)
    assert wait_text("Priority") == "Priority"


def test_ended_starts_of_jobs_are_sorted(programs: Programs) -> None:
    lines = [
        "7_0|RUNNING|n3|0:0|2026-11-23T23:40:00|Unknown",
        "7_0|NODE_FAIL|n2|0:0|2026-11-23T23:20:00|2026-11-23T23:30:00",
        "7_0|PREEMPTED|n1|0:0|2026-11-23T23:00:00|2026-11-23T23:10:00",
        "7_1|PENDING|None assigned|0:0|Unknown|Unknown",
    ]
    programs(sacct="; ".join(f"echo '{line}'" for line in lines))
    starts = earlier_starts(["7_0", "7_1"])
    assert [state.state for state in starts["7_0"]] == ["PREEMPTED", "NODE_FAIL"] and starts["7_1"] == []
