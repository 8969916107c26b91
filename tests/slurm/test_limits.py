"""Limits on jobs: their number, their time, and keys that one node must meet together."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from getpass import getuser
from pathlib import Path

import pytest

from depthrate.slurm.cluster_limits import JobGroup, Limits, Partition, read_submit_limits
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.profile import Profile

ASSOCIATIONS = """\
theory|theory||50||few
theory|shared||7||
theory|theory|gpu|9||
"""
ACCOUNTS = """\
root|||
theory||dept|
shared||dept|30
dept||root|8
maths||root|1
theory|eve|dept|2
"""
QUALITIES = """\
normal||||
few||5||
many||100|60|400
over|DenyOnLimit,OverPartQOS|100||
part||3||9
"""
DEPARTMENT = JobGroup("dept", is_shared=True, subaccounts=("shared", "theory"))


@pytest.fixture
def accounting(tmp_path: Path, programs: Callable[..., None]) -> Callable[[str], None]:
    """Let sacctmgr show these associations and QOS."""

    def add(associations: str) -> None:
        (tmp_path / "user").write_text(associations)
        (tmp_path / "qos").write_text(QUALITIES)
        (tmp_path / "assoc").write_text(ACCOUNTS if associations else "")
        programs(sacctmgr=f'echo "$@" >> {tmp_path}/calls; cat {tmp_path}/$4')

    return add


@pytest.mark.parametrize(
    ("profile", "limits"),
    [
        (Profile(), {JobGroup("theory"): 50, JobGroup(qos="few"): 5, DEPARTMENT: 8}),
        (Profile(qos="normal"), {JobGroup("theory"): 50, DEPARTMENT: 8}),
        (Profile(account="shared"), {JobGroup("shared"): 7, JobGroup("shared", is_shared=True): 30, DEPARTMENT: 8}),
        (Profile(account="Theory", qos="Few"), {JobGroup("theory"): 50, JobGroup(qos="few"): 5, DEPARTMENT: 8}),
        (
            Profile(partition="gpu", qos="many"),
            {
                JobGroup("theory"): 50,
                JobGroup("theory", "gpu"): 9,
                JobGroup(qos="many"): 100,
                JobGroup("theory", qos="many", is_shared=True): 60,
                JobGroup(qos="many", is_shared=True): 400,
                DEPARTMENT: 8,
            },
        ),
        (Profile(qos="few,many"), {}),
    ],
)
def test_limits_of_account_and_qos(
    accounting: Callable[[str], None], profile: Profile, limits: dict[JobGroup, int]
) -> None:
    """The limit is not the minimum over all accounts and QOS of the user. An account's parents have limits, too."""
    accounting(ASSOCIATIONS)
    assert read_submit_limits(profile, "lab").max_jobs == limits


@pytest.mark.parametrize(
    ("qos", "limits"),
    [
        ("normal", {JobGroup(partition="gpu"): 3, JobGroup(partition="gpu", is_shared=True): 9}),
        ("many", {JobGroup(partition="gpu"): 3, JobGroup(partition="gpu", is_shared=True): 9}),
        ("over", {JobGroup(qos="over"): 100, JobGroup(partition="gpu", is_shared=True): 9}),
    ],
)
def test_limits_of_a_partitions_qos_take_precedence(
    accounting: Callable[[str], None], qos: str, limits: dict[JobGroup, int]
) -> None:
    accounting(ASSOCIATIONS)
    gpu = Partition("gpu", False, True, None, 1, 1.0, 0, 1, qos="part")
    known = read_submit_limits(Profile(qos=qos), "lab", gpu).max_jobs
    assert known == {**known, **limits} and JobGroup(qos="many") not in known
    assert JobGroup(partition="gpu") not in read_submit_limits(Profile(qos=qos), "lab").max_jobs


@pytest.mark.parametrize(
    ("table", "closed"),
    [
        ("user", "account theory accepts no jobs: its limit is 0"),
        ("assoc", "account dept accepts no jobs"),
        ("qos", "QOS few accepts no jobs"),
    ],
)
def test_a_limit_of_0_is_refused(accounting: Callable[[str], None], tmp_path: Path, table: str, closed: str) -> None:
    accounting(ASSOCIATIONS)
    file = tmp_path / table
    file.write_text(re.sub(r"\|(50|8|5)\|", "|0|", file.read_text() + "\n").replace("dept||root|8", "dept||root|0"))
    with pytest.raises(SlurmError, match=closed):
        read_submit_limits(Profile(), "lab")


def test_only_associations_of_this_cluster_are_asked_for(accounting: Callable[[str], None], tmp_path: Path) -> None:
    accounting("")
    assert read_submit_limits(Profile(account="theory", qos="few"), "lab").max_jobs == {JobGroup(qos="few"): 5}
    assert f"user={getuser()} cluster=lab" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("group", "options"),
    [
        (JobGroup(), "--me"),
        (JobGroup(qos="few"), "--qos=few --me"),
        (JobGroup("theory", qos="few", is_shared=True), "--account=theory --qos=few"),
        (JobGroup("theory", "gpu"), "--account=theory --partition=gpu --me"),
        (DEPARTMENT, "--account=dept,shared,theory"),
    ],
)
def test_jobs_are_counted_by_user(tmp_path: Path, programs: Callable[..., None], group: JobGroup, options: str) -> None:
    programs(squeue=f'echo "$@" > {tmp_path}/call; printf "bob\\nbob\\neve\\n"')
    assert group.count() == Counter({"bob": 2, "eve": 1})
    assert (tmp_path / "call").read_text().split()[2:-1] == options.split()


def node(name: str, cpus: int, gpu_types: dict[str, int], features: str) -> Partition:
    return Partition(name, False, True, None, cpus, 8.0, sum(gpu_types.values()), 1, gpu_types, frozenset(features))


NODES = (
    *(node("n1", 2, {"v100": 4}, "ab"), node("n2", 8, {"a100": 1}, "b"), node("n3", 8, {"a100": 1, "v100": 1}, "bc")),
    node("n4", 8, {}, "d"),
)
MIXED = Partition("mix", True, True, 60.0, 8, 8.0, 4, 4, {"v100": 4, "a100": 1}, frozenset("abcd"), NODES)


@pytest.mark.parametrize(
    ("profile", "usable"),
    [
        (Profile(), ["n1", "n2", "n3", "n4"]),
        (Profile(exclude=("n1", "n2", "n3", "n4", "n9")), []),
        (Profile(constraint="a", cpus=8), []),
        (Profile(constraint="b", cpus=8), ["n2", "n3"]),
        (Profile(constraint="b", cpus=8, exclude=("n3",)), ["n2"]),
        (Profile(constraint="a|c", cpus=8), ["n3"]),
        (Profile(constraint="a & b", cpus=3), []),
        (Profile(constraint="[a|d]", gpus=1), ["n1"]),
        (Profile(constraint="[a*1&c*1]"), ["n1", "n3"]),
        (Profile(constraint="b&d"), []),
        (Profile(gpus=2, cpus=8), ["n3"]),
        (Profile(gpus=2, gpu_type="v100", cpus=8), []),
        (Profile(gpus=1, gpu_type="a100", constraint="c"), ["n3"]),
    ],
)
def test_keys_are_checked_together_per_node(profile: Profile, usable: list[str]) -> None:
    assert MIXED.num_usable(profile) == len(usable)
    limits = Limits("lab", 101, 2000, {"mix": MIXED})
    if usable:
        limits.check(profile, 1)
    else:
        with pytest.raises(SlurmError, match="none of the 4 nodes of partition mix meets"):
            limits.check(profile, 1)


@pytest.mark.parametrize(
    ("profile", "allowed_min"),
    [
        (Profile(qos="plain"), 60),
        (Profile(qos="over"), 60),
        (Profile(qos="free"), 10_000),
        (Profile(qos="long"), 600),
        (Profile(qos="plain,long"), 600),
        (Profile(account="theory"), 600),
        (Profile(account="shared"), 60),
    ],
)
def test_a_qos_lifts_the_time_limit(programs: Callable[..., None], profile: Profile, allowed_min: int) -> None:
    qualities = "plain||1-00:00:00\nover|OverPartQOS|\nfree|DenyOnLimit,PartitionTimeLimit|\n"
    qualities += "long|PartitionTimeLimit|10:00:00\nnormal||"
    associations = "theory|theory||||long\ntheory|shared||||"
    answers = f"user) echo '{associations}';; *wall) echo '{qualities}';;"
    programs(sacctmgr=f'case ${{4/qos/"$5"}} in {answers} esac')
    limits = Limits("lab", 101, 2000, {"mix": MIXED})
    limits.check(replace(profile, walltime_min=allowed_min), 1)
    if profile.qos != "free":
        with pytest.raises(SlurmError, match=f"is {allowed_min + 1}, but partition mix allows {allowed_min} minutes"):
            limits.check(replace(profile, walltime_min=allowed_min + 1), 1)
