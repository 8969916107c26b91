"""Records in a shared store may name any job of the cluster. Jobs with a foreign name are never cancelled."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack, jobs_of_sweep
from depthrate.slurm import job_states
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.store import Store
from tests.support.here import printed

OURS, LIE = (f"depthrate-s-20260101T000000_{letter * 12}" for letter in "ab")
CONFIG = "ClusterName = lab\nMaxArraySize = 1001\nMaxJobCount = 10000\n"


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a fake cluster on the PATH: its queue consists of (job, state, name), and its scancel records its arguments."""
    programs = tmp_path / "programs"
    programs.mkdir()
    answers = {"squeue": "", "scancel": f'echo "$@" >> {tmp_path}/cancelled'}
    answers["scontrol"] = f"case \"$*\" in *config*) cat <<'E'\n{CONFIG}E\n;; esac"

    def write() -> None:
        for name, script in answers.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)

    def set_queue(*jobs: tuple[str, str, str]) -> None:
        widths = [int(column.partition(":")[2]) for column in job_states._COLUMNS]
        unset = ("0", "", "None", "0", "N/A", "N/A")
        rows = [(job, "N/A", job, state, *unset, name) for job, state, name in jobs]
        lines = ["".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
        answers["squeue"] = "cat <<'E'\n" + "\n".join(lines) + "\nE"
        write()

    write()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return set_queue


@pytest.fixture
def shared(folder: Store) -> Store:
    """Create a store with two submissions: one of this sweep, and one that names a foreign job."""
    folder.write_format()
    write_spec(folder, "s", "0" * 16, {"name": "s", "task": "collapse"}, ["t1", "t2"])
    for number, name in ((7, OURS), (8, LIE)):
        packs = [[SubmittedPack(f"20260101T000000_{number:012d}", f"p{number}", [f"t{number}"])]]
        Submission(name, "s", "lab", f"{folder.root}/slurm/s/{name}", packs, [str(number)]).write(folder)
    return folder


def test_cancel_spares_foreign_jobs(shared: Store, queue: Callable[..., None], tmp_path: Path) -> None:
    queue(("7", "RUNNING", OURS), ("8", "RUNNING", "thesis"))
    assert "1 job of s cancelled" in printed("cancel", "s", "--store", shared.root)
    assert (tmp_path / "cancelled").read_text().split() == ["--quiet", "7"]


def test_status_counts_only_them(shared: Store, queue: Callable[..., None]) -> None:
    queue(("7", "PENDING", OURS), ("8", "RUNNING", "thesis"))
    (status,) = json.loads(printed("status", "s", "--json", "--store", shared.root))
    assert (status["slurm_jobs"]["waiting"], status["slurm_jobs"]["running"]) == (1, 0)


def test_a_launch_watches_only_them(shared: Store, queue: Callable[..., None]) -> None:
    queue(("7", "RUNNING", OURS), ("8", "RUNNING", "thesis"))
    submissions, known = jobs_of_sweep(shared, "s", "lab")
    assert list(known) == ["7"]
    assert {submission.name: submission.job_ids for submission in submissions} == {
        OURS: ["7"],
        LIE: [],
    }


def test_record_cannot_claim_anothers_job(shared: Store, queue: Callable[..., None]) -> None:
    packs = [[SubmittedPack("20260101T000000_000000000009", "p9", ["t9"])]]
    Submission(LIE, "s", "lab", f"{shared.root}/slurm/s/{LIE}", packs, ["7"]).write(shared)
    queue(("7", "RUNNING", OURS))
    submissions, known = jobs_of_sweep(shared, "s", "lab")
    assert list(known) == ["7"]
    assert {submission.name: submission.job_ids for submission in submissions} == {
        OURS: ["7"],
        LIE: [],
    }
