"""Handling of sbatch's answers, with programs that give prepared answers."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from depthrate.slurm import submit
from depthrate.slurm.command import command_environment, ignored_variables_message, run_command
from depthrate.slurm.errors import SlurmError, SubmitLimitError, UnclearSubmissionError
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import import_submitit
from depthrate.slurm.submit import submit_array

pytest.importorskip("submitit")
NAME = "depthrate-s-20260101T000000_000000000000"
Programs = Callable[..., None]


@pytest.fixture(autouse=True)
def quiet_cluster(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that has no jobs, and no waits for it."""
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
    programs(srun="", squeue="")


def send(folder: Path, num_jobs: int = 3) -> list[str]:
    return submit_array(Profile(), NAME, folder / "jobs", print, [["x"]] * num_jobs)


def known(array_id: str) -> str:
    return f"printf '%-200s%-24s\\n' {NAME} {array_id}"


def test_the_work_lies_ready_before_sbatch_is_called(programs: Programs, tmp_path: Path) -> None:
    programs(sbatch='ls "$(dirname $2)" > "$(dirname $2)/seen"; echo "Welcome to big"; echo "77;big"')
    assert send(tmp_path) == ["77_0", "77_1", "77_2"]
    seen = (tmp_path / "jobs" / "seen").read_text().split()
    assert {"work_0.pkl", "work_1.pkl", "work_2.pkl", "submission.sh"} <= set(seen)
    assert send(tmp_path, 1) == ["77"]


@pytest.mark.parametrize(
    "answer",
    [
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
        "echo hello",
    ],
)
def test_controller_outranks_sbatch(programs: Programs, tmp_path: Path, answer: str) -> None:
    programs(sbatch=answer, squeue=known("78"))
    assert send(tmp_path) == ["78_0", "78_1", "78_2"]


def test_refusal_needs_an_empty_controller(programs: Programs, tmp_path: Path) -> None:
    programs(sbatch="echo one >&2; echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(
        SlurmError, match=r"sbatch refused the jobs: .*one / .*Invalid account.*\. The script is"
    ) as caught:
        send(tmp_path)
    assert not isinstance(caught.value, UnclearSubmissionError)


@pytest.mark.parametrize("cause", ["Requested node configuration is not available", "Invalid license specification"])
def test_refused_job_has_no_record(programs: Programs, tmp_path: Path, cause: str) -> None:
    programs(sbatch=f"echo 'sbatch: error: Batch job submission failed: {cause}' >&2; exit 1")
    programs(squeue=f"printf '%-200s%-24s%-24s%-24s\\n' {NAME} 78 FAILED ''")
    with pytest.raises(SlurmError, match=cause):
        send(tmp_path)


@pytest.mark.parametrize(("node", "is_accepted"), [("n1", True), ("", False)])
def test_a_lost_answer_about_a_refused_job(programs: Programs, tmp_path: Path, node: str, is_accepted: bool) -> None:
    programs(sbatch="echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1")
    programs(squeue=f"printf '%-200s%-24s%-24s%-24s\\n' {NAME} 78 FAILED '{node}'")
    if is_accepted:
        assert send(tmp_path) == ["78_0", "78_1", "78_2"]
    else:
        with pytest.raises(SlurmError, match="Socket timed out"):
            send(tmp_path)


def test_accounts_are_tried_in_turn(programs: Programs, tmp_path: Path) -> None:
    refused = "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1"
    programs(sbatch=f'grep -q account=second "$2" || {{ {refused}; }}; echo 79')
    profile = Profile(account="first,second,third")
    assert submit_array(profile, NAME, tmp_path / "jobs", print, [["x"]]) == ["79"]


def test_full_queue_outranks_refused_account(programs: Programs, tmp_path: Path) -> None:
    full = "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2"
    refused = "echo 'sbatch: error: Batch job submission failed: x' >&2; exit 1"
    programs(sbatch=f'grep -q account=second "$2" || {full}; {refused}')
    with pytest.raises(SubmitLimitError, match="AssocMaxSubmitJobLimit"):
        submit_array(Profile(account="first,second"), NAME, tmp_path / "jobs", print, [["x"]])


def test_sbatch_keeps_the_time_zone(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs inherit the variables of sbatch. Other commands print times in UTC."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    programs(sbatch=f"echo $TZ > {tmp_path}/zone; echo 77", squeue="echo $TZ")
    send(tmp_path)
    assert (tmp_path / "zone").read_text() == "Europe/Berlin\n" and run_command(["squeue"]) == "UTC\n"


def test_silence_is_no_refusal(programs: Programs, tmp_path: Path) -> None:
    away = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
    programs(sbatch=away, squeue=away)
    with pytest.raises(UnclearSubmissionError, match=r"unknown whether it accepted the jobs: .*Unable to contact"):
        send(tmp_path)


def test_what_surrounds_a_launch_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in command_environment() if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    assert ignored_variables_message() == ""
    for name in ("SLURM_CONF", "SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURMD_NODENAME"):
        monkeypatch.setenv(name, "1")
    passed = {name for name in command_environment() if re.match("S[A-Z]*_", name)}
    assert {"SLURM_CONF", "SLURMD_NODENAME"} <= passed
    assert not passed & {"SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "SQUEUE_FORMAT"}
    assert ignored_variables_message().startswith("ignored: SBATCH_PARTITION, SLURM_MEM_PER_CPU, SQUEUE_FORMAT.")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert ignored_variables_message() == "this launch runs inside SLURM job 12. New jobs do not inherit its settings."


def test_submitit_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "submitit"] + ["submitit"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SlurmError, match=r"needs submitit .*pip install 'depthrate\[slurm\]'"):
        import_submitit()
    with pytest.raises(SlurmError, match=r"pip install 'depthrate\[slurm\]'"):
        submit.submit_array(Profile(), "name", tmp_path, print, [["a"]])  # type: ignore[arg-type]


def test_no_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squeue"
    program.write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmError) as caught:
        run_command(["squeue", "--me"])
    assert "scontrol ping" in str(caught.value) and "\n" not in str(caught.value)
