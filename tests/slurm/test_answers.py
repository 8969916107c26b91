"""Answers of SLURM's commands of versions 20.11 to 25.05, and the same with banners, comments and damaged bytes in them."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthrate.slurm import command, in_job
from depthrate.slurm.cluster_limits import JobGroup, parse_minutes, read_limits, read_submit_limits
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import (
    JobState,
    earlier_starts,
    live_job_ids,
    sacct_states,
    squeue_states,
    unfinished_names,
)
from depthrate.slurm.profile import Profile, parse_gpu_gres

LINUX = "Linux 3.10.0-1160.el7.x86_64 #1 SMP Wed Oct 13 17:20:51 UTC 2021"
NODES = {
    "20.11": "NodeName=a1 Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUTot=64 CPULoad=0.01 AvailableFeatures=ib,amd "
    "ActiveFeatures=ib,amd Gres=gpu:a100:4(S:0-1) NodeAddr=a1 NodeHostName=a1 Version=20.11.8 OS={os}  "
    "RealMemory=512000 AllocMem=0 FreeMem=1 Sockets=2 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=gpu,all  BootTime=2021-10-25T15:48:07 SlurmdStartTime=2021-10-25T17:44:25 "
    "CfgTRES=cpu=64,mem=512000M,gres/gpu=4 AllocTRES= CapWatts=n/a ExtSensorsTemp=n/s Comment={text} Reason={text}",
    "22.05": "NodeName=a1 Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.49 "
    "AvailableFeatures=ib,amd ActiveFeatures=ib,amd Gres=gpu:a100:2(S:0,1),gpu:a100:2(S:1) NodeAddr=a1 "
    "NodeHostName=a1 Version=22.05.8 OS={os}  RealMemory=512000 AllocMem=0 FreeMem=1 Sockets=2 Boards=1 State=IDLE "
    "ThreadsPerCore=1 Owner=N/A Partitions=gpu,all  BootTime=2026-11-27T17:53:05 CfgTRES=cpu=64,mem=512000M "
    "AllocTRES= CapWatts=n/a ExtSensorsTemp=n/s Reason={text} [root@2026-11-27T18:06:11] Comment={text} Extra={text}",
    "25.05": "NodeName=a1 Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 CPUEfctv=64 CPUTot=66 CPULoad=0.49 "
    "AvailableFeatures=ib,amd ActiveFeatures=ib,amd Gres=gpu:a100:no_consume:4,shard:8 NodeAddr=a1 NodeHostName=a1 "
    "Version=25.05.1 OS={os} RealMemory=512000 AllocMem=0 FreeMem=1 Sockets=2 Boards=1 State=DOWN+NOT_RESPONDING "
    "ThreadsPerCore=1 Owner=N/A MCS_label=N/A Partitions=gpu,all BootTime=None ResumeAfterTime=None "
    "CfgTRES=cpu=64,mem=512000M AllocTRES= CurrentWatts=0 Reason={text} [u@t] Comment={text} Extra={text} InstanceId=x",
}
PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL Default=NO QoS=N/A MaxNodes=UNLIMITED MaxTime=2-00:00:00 Nodes=a1 State=UP "
    "JobDefaults=(null) TRES=cpu=64,mem=512000M\nPartitionName=all Default=YES MaxTime=UNLIMITED State=UP\n"
)
CONFIG = (
    "Configuration data as of 2026-11-27T18:00:00\nClusterName             = big\nMaxArraySize            = 1001\n"
    "MaxJobCount             = 10000\nSchedulerParameters     = bf_continue,max_array_tasks=500\n\n"
    "Cgroup Support Configuration:\nMaxJobCount = no\n"
)
JOB = (
    "JobId=9 ArrayJobId=7 ArrayTaskId=3 JobName={text} UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=1 "
    "Account=a QOS=normal JobState=RUNNING Reason={text} Dependency=(null) Requeue=1 RunTime=00:10:00 "
    "TimeLimit=01:00:00 StartTime=2026-10-25T00:30:00 EndTime=2026-10-25T01:30:00 Partition=gpu NodeList=a1 "
    "Comment={text} AdminComment={text} Command=/x {text} WorkDir=/x Power= \n"
)
QUEUE = [  # cell, width in bytes
    *[("7", 24), ("3", 24), ("9", 24), ("RUNNING", 24), ("1", 12), ("a1", 120), ("{text}", 120), ("0", 12)],
    *[("2026-10-25T00:30:00", 24), ("2026-10-25T01:30:00", 24), ("depthrate-s", 200)],
]
SACCT = "7_3|TIMEOUT|a1|0:15|2026-10-25T00:30:00|2026-10-25T01:30:00"
SACCT_HEADER = "JobID|State|NodeList|ExitCode|Start|End"
START = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
MISLEADING = [
    *["RealMemory=515000MB", "Gres=gpu:9", "Partitions=x", "CPUTot=1", "NodeName=b", "EndTime=2030-01-01T00:00:00"],
    *["JobState=CANCELLED", "c\xe2ble", "|", "\u2028", "\x85", "\x0c", "=", "é", "AvailableFeatures=", "MaxTime=1"],
]
COMMENTS = st.lists(st.sampled_from(MISLEADING) | st.text("ab= \xe9\u2028|", max_size=5), max_size=6).map(" ".join)
ENCODINGS = st.sampled_from(["utf-8", "latin-1"])


def answering(answers: Callable[[Sequence[str]], bytes]) -> object:
    """Let SLURM's commands print `answers` of their arguments."""

    def run(arguments: Sequence[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(arguments, 0, answers(arguments), b"")

    return patch.multiple(command, subprocess=MockedProcess(run), shutil=MockedShell)


class MockedShell:
    which = staticmethod(lambda program: program)


class MockedProcess:
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, run: Callable[..., subprocess.CompletedProcess[bytes]]) -> None:
        self.run = run


def scontrol(node: bytes) -> Callable[[Sequence[str]], bytes]:
    return lambda arguments: {"config": CONFIG.encode(), "node": node}.get(arguments[-1], PARTITIONS.encode())


def encoded(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "replace")


def queue_line(text: bytes) -> bytes:
    return b"".join(cell.encode().replace(b"{text}", text)[:width].ljust(width) for cell, width in QUEUE) + b"\n"


@pytest.mark.parametrize("version", NODES)
@given(text=COMMENTS, encoding=ENCODINGS)
def test_comments_do_not_change_limits(version: str, text: str, encoding: str) -> None:
    node = encoded(NODES[version].format(os=LINUX, text=text), encoding) + b"\n"
    with answering(scontrol(b"Welcome to big|\n" + node)):
        limits = read_limits()
    assert (limits.cluster, limits.array_size, limits.max_jobs) == ("big", 500, 10000)
    partition = limits.partitions["gpu"]
    assert (partition.cpus, partition.mem_gb, partition.gpus, partition.nodes) == (64, 500.0, 4, 1)
    assert (partition.max_min, partition.gpu_types, partition.features) == (2880, {"a100": 4}, {"ib", "amd"})
    assert list(limits.partitions) == ["gpu", "all"] and limits.partitions["all"].is_default


def test_a_node_without_partitions_is_ignored() -> None:
    stray = NODES["22.05"].replace("=a1 Arch", "=b Arch").replace("Partitions=gpu,all ", "")
    nodes = "\n".join([NODES["22.05"], stray]).format(os="RealMemory=1 x", text="Partitions=gpu RealMemory=5MB")
    with answering(scontrol(nodes.encode())):
        partition = read_limits().partitions["gpu"]
    assert (partition.nodes, partition.mem_gb) == (1, 500.0)


def test_nodes_that_are_powered_down() -> None:
    """SLURM lists no cloud node that is powered down, so only SLURM knows whether it is large enough."""
    partitions = PARTITIONS.replace("Nodes=a1 State=UP", "Nodes=a1,c[1-2] State=UP TotalCPUs=256 TotalNodes=3")
    partitions = partitions.replace("MaxTime=UNLIMITED", "MaxTime=UNLIMITED TotalNodes=2 Nodes=c[1-2] QoS=few")
    printed = {"config": CONFIG, "node": NODES["22.05"].format(os=LINUX, text=""), "partition": partitions}
    printed["node"] = printed["node"].replace("Partitions=gpu,all", "Partitions=gpu")
    with answering(lambda arguments: printed[arguments[-1]].encode()):
        limits = read_limits()
    limits.check(Profile(partition="gpu", gpus=8, cpus=128, constraint="unheard-of"), 1)
    limits.check(Profile(gpus=1), 1)
    assert limits.partitions["gpu"].num_usable(Profile()) == 3 and limits.partitions["all"].num_usable(Profile()) == 2
    assert (limits.partitions["gpu"].nodes, limits.partitions["all"].nodes, limits.partitions["all"].qos) == (
        3,
        2,
        "few",
    )
    with pytest.raises(SlurmError, match="walltime_min is 2881, but partition gpu allows 2880 minutes"):
        limits.check(Profile(partition="gpu", walltime_min=2881), 1)


@pytest.mark.parametrize(("ends", "left"), [("02:30", 1200), ("01:30", 1200)])
def test_the_repeated_hour_in_both_zones(ends: str, left: int) -> None:
    """At 02:10 for the second time, a job ends at 02:30 in Berlin. A wrapper that ignores TZ prints the local time."""
    starts = f"{int(ends[:2]) - 1:02}{ends[2:]}"
    record = f"JobId=7 JobState=RUNNING StartTime=2026-10-25T{starts}:00 EndTime=2026-10-25T{ends}:00\n".encode()
    try:
        with patch.dict(os.environ, {"SLURM_JOB_ID": "7", "TZ": "Europe/Berlin"}), answering(lambda arguments: record):
            time.tzset()
            with patch.object(in_job.time, "time", lambda: 1792890600.0):
                assert in_job.seconds_left() == left
    finally:
        time.tzset()


@given(text=COMMENTS, encoding=ENCODINGS)
def test_comments_do_not_change_a_job(text: str, encoding: str) -> None:
    record, line = encoded(JOB.replace("{text}", text), encoding), queue_line(encoded(text, encoding))
    printed = {"scontrol": b"Maintenance on Monday\n" + record, "squeue": b"Welcome|to big\n" + line}
    variables = {"SLURM_JOB_ID": "9", "TZ": "Europe/Berlin"}
    with answering(lambda arguments: printed[arguments[0]]), patch.dict(os.environ, variables):
        with patch.object(in_job.time, "time", lambda: START + 600):
            assert in_job.seconds_left() == 3000 and in_job.is_ending() is False
        (state,) = squeue_states(["7_3"]).values()
    assert (state.state, state.restarts, state.node, state.name) == ("RUNNING", 1, "a1", "depthrate-s")
    assert (state.exit_code, state.started_at, state.ended_at) == (0, START, START + 3600)


@pytest.mark.parametrize(
    "printed",
    [
        SACCT,
        f"{SACCT_HEADER}\n{SACCT}",
        f"Welcome to big\n\n{SACCT}|big\n",
        f"News | Monday\n{SACCT_HEADER}|Cluster\r\n{SACCT}|big\r\n7_4|short\n",
        f"Cluster|{SACCT_HEADER}|\nbig|{SACCT}|\n",
    ],
)
def test_the_accounting_is_read_by_column(printed: str) -> None:
    with answering(lambda arguments: printed.encode()):
        assert sacct_states(["7_3"]) == {
            "7_3": JobState("TIMEOUT", None, "a1", "", 0, START + 3600, "", 15, started_at=START)
        }


QUERIES = {
    "sacct": lambda: sacct_states(["7_3"]),
    "sacct --duplicates": lambda: earlier_starts("7_3"),
    "squeue": lambda: squeue_states(["7_3"]),
    "squeue --name": lambda: live_job_ids(["depthrate-s"]),
    "squeue --name of unfinished": lambda: unfinished_names(["depthrate-s"], 1.0),
    "scontrol": read_limits,
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_sentence_is_no_answer(query: str) -> None:
    with (
        answering(lambda arguments: b"Slurm accounting storage is disabled\n"),
        pytest.raises(SlurmError, match="printed"),
    ):
        QUERIES[query]()


def test_a_sentence_about_limits_sets_none() -> None:
    with answering(lambda arguments: b"Welcome to big\n"):
        assert read_submit_limits(Profile(account="a"), "big").max_jobs == {}
        assert JobGroup().count() == {}


ALL_ANSWERS = [
    *[NODES["22.05"].format(os=LINUX, text="x").encode(), PARTITIONS.encode(), CONFIG.encode(), JOB.encode()],
    *[queue_line(b"None"), SACCT.encode(), b"theory|theory||50||few", b"few|5||", b"few|PartitionTimeLimit|10:00:00"],
]


@given(
    answer=st.sampled_from(ALL_ANSWERS) | st.binary(max_size=40),
    cut=st.tuples(st.integers(0, 500), st.integers(0, 500)),
    inserted=st.binary(max_size=8) | st.sampled_from(["²".encode(), b"9" * 5000, b"\n", b"|||||||", b"-1", b"1.5"]),
)
def test_damaged_answers_raise_slurm_errors_alone(answer: bytes, cut: tuple[int, int], inserted: bytes) -> None:
    """Whatever a command prints, each query returns or raises a SlurmError."""
    damaged = answer[: min(cut)] + inserted + answer[max(cut) :]
    queries = [
        *[*QUERIES.values(), lambda: read_submit_limits(Profile(), "big"), JobGroup().count],
        *[in_job.seconds_left, in_job.is_ending, lambda: squeue_states(["7_x", "7_3"])],
        *[lambda: parse_minutes(damaged.decode(errors="replace"))],
    ]
    for query in queries:
        with answering(lambda arguments: damaged), patch.dict(os.environ, {"SLURM_JOB_ID": "9"}):
            try:
                query()  # type: ignore[operator]
            except SlurmError as error:
                assert str(error).isprintable()


@given(st.text("gpu:a1²_no_consume(S:0,1-)", max_size=30))
def test_any_generic_resources_are_counted(text: str) -> None:
    assert all(count >= 0 for _, count in parse_gpu_gres(text))


@pytest.mark.parametrize(
    ("gres", "counts"),
    [
        ("gpu:a100:no_consume:4", [("a100", 4)]),
        ("gpu:no_consume:4", [(None, 4)]),
        ("gpu:a100:4(S:0,2-3),shard:a100:8", [("a100", 4)]),
        ("gpu:1g.10gb:2,gpu:a100", [("1g.10gb", 2), ("a100", 1)]),
        ("gpu", [(None, 1)]),
        ("gpu:no_consume", [(None, 1)]),
        ("(null)", []),
    ],
)
def test_gpus_of_nodes_and_jobs(gres: str, counts: list[tuple[str | None, int]]) -> None:
    assert parse_gpu_gres(gres) == counts
