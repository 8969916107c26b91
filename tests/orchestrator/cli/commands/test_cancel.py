"""`depthrate cancel` stops a launch that somebody else started, and the sweep goes on later."""

import pytest
from rich.console import Console

from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.cli.commands.cancel import cancel_sweep
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack, read_submissions
from depthrate.orchestrator.launch.outcome import Outcome, Progress
from depthrate.storage.files.store import Store
from tests.support.launches import drive, plan_of


def drive_slow(store: Store, cancel_at_once: bool) -> Outcome:
    def watch(progress: Progress) -> None:
        if cancel_at_once and progress.packs_running:
            cancel_sweep(store, "s", Console(quiet=True))

    return drive(plan_of(store, "slow", workers=2, grid={"depth": [2, 3]}), store, watch=watch, workers=2)


@pytest.mark.slow
def test_cancellation_spares_later_launches(folder: Store) -> None:
    outcome = drive_slow(folder, cancel_at_once=True)
    assert outcome.cancelled and outcome.interrupted and not outcome.failures
    assert folder.list("trials") == {}
    assert not drive_slow(folder, cancel_at_once=False).interrupted and len(folder.list("trials")) == 2


def test_damaged_submissions_are_skipped(folder: Store) -> None:
    name = "depthrate-s-20260101T000000_aaaaaaaaaaaa"
    made = Submission(name, "s", "lab", f"/f/s/{name}", [[SubmittedPack("a", "p", ["t"])]], ["7_0"])
    made.write(folder)
    folder.write("jobs/sweep=s/torn.json", b"{")
    folder.write("jobs/sweep=s/other.json", b'{"name": "x"}')
    assert read_submissions(folder, ["s"]) == [made] and read_submissions(folder, ["other"]) == []
    assert made.jobs() == [("7_0", [SubmittedPack("a", "p", ["t"])])]
    made.delete(folder)
    assert read_submissions(folder, ["s"]) == []


def test_cancel_prints_a_line_a_kind(folder: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(7):
        name = f"20260101T000000_{number:012d}"
        at = {"host": f"n{number % 2 + 1}"}
        Attempt(attempt_id=name, sweep="s", pack_id="p", trial_ids=["t"], device="cpu", pid=1, **at).beat(folder)
    cancel_sweep(folder, "s", Console(width=1000))
    first, last = capsys.readouterr().out.splitlines()
    assert first == "7 running attempts on n1, n2: will stop after a checkpoint. If it hangs: --force"
    assert "stop within" in last
