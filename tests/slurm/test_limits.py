"""Jobs that count toward a submit limit, with programs that print like a cluster."""

from collections import Counter
from collections.abc import Callable
from getpass import getuser
from pathlib import Path

import pytest

from depthrate.slurm.cluster_limits import JobGroup, SubmitLimits, read_submit_limits
from depthrate.slurm.profile import Profile

ASSOCIATIONS = """\
theory|theory||50||few
theory|shared||7||
theory|theory|gpu|9||
"""
QUALITIES = "normal|||\nfew|5||\nmany|100|60|400\n"


@pytest.fixture
def accounting(tmp_path: Path, programs: Callable[..., None]) -> Callable[[str], None]:
    """Let sacctmgr show these associations and QOS."""

    def add(associations: str) -> None:
        (tmp_path / "user").write_text(associations)
        (tmp_path / "qos").write_text(QUALITIES)
        programs(sacctmgr=f'echo "$@" >> {tmp_path}/calls; cat {tmp_path}/$4')

    return add


@pytest.mark.parametrize(
    ("profile", "limits"),
    [
        (Profile(), {JobGroup("theory"): 50, JobGroup(qos="few"): 5}),
        (Profile(qos="normal"), {JobGroup("theory"): 50}),
        (Profile(account="shared"), {JobGroup("shared"): 7}),
        (
            Profile(partition="gpu", qos="many"),
            {
                JobGroup("theory"): 50,
                JobGroup("theory", "gpu"): 9,
                JobGroup(qos="many"): 100,
                JobGroup("theory", qos="many", is_shared=True): 60,
                JobGroup(qos="many", is_shared=True): 400,
            },
        ),
        (Profile(qos="few,many"), {}),
    ],
)
def test_limits_are_those_of_the_jobs_account_and_qos(
    accounting: Callable[[str], None], profile: Profile, limits: dict[JobGroup, int]
) -> None:
    """The limit is not the minimum over all accounts and QOS of the user."""
    accounting(ASSOCIATIONS)
    assert read_submit_limits(profile, "lab").max_jobs == limits


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
    ],
)
def test_jobs_are_counted_by_user(tmp_path: Path, programs: Callable[..., None], group: JobGroup, options: str) -> None:
    programs(squeue=f'echo "$@" > {tmp_path}/call; printf "bob\\nbob\\neve\\n"')
    assert group.count() == Counter({"bob": 2, "eve": 1})
    assert (tmp_path / "call").read_text().split()[2:-1] == options.split()


@pytest.mark.parametrize(
    ("refusal", "group"),
    [
        ("QOSMaxSubmitJobPerUserLimit", JobGroup(qos="few")),
        ("QOSGrpSubmitJobsLimit", JobGroup(qos="few", is_shared=True)),
        ("AssocMaxSubmitJobLimit", JobGroup("theory")),
        ("AssocGrpSubmitJobsLimit", JobGroup("theory", is_shared=True)),
        ("MaxSubmitJobsPerAccount", JobGroup("theory", qos="few", is_shared=True)),
        ("Slurm temporarily unable to accept job", JobGroup()),
    ],
)
def test_a_refusal_names_whose_jobs_fill_the_limit(refusal: str, group: JobGroup) -> None:
    message = f"sbatch refused the jobs: {refusal} / Batch job submission failed: Job violates accounting/QOS policy"
    assert SubmitLimits(account="theory", qos="few").refused_group(message) == group
    assert SubmitLimits().refused_group(message) == JobGroup(), "without names all jobs of the user count"
