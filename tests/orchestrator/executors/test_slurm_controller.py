"""A real controller that is slow or away, cancellations by hand, and limits of a QOS."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from getpass import getuser

import pytest

from tests.support.slurm_bench import Bench

pytestmark = pytest.mark.timeout(1800)


def begin(bench: Bench, num_packs: int, **params: object) -> subprocess.Popen[str]:
    """Start a launch whose packs all wait for a file, one in each job, and return it when all CPUs are taken."""
    (bench.folder / "hold").touch()
    bench.profile |= {"job_min": 0, "array_parallelism": num_packs}
    all_params = {"steps": 5, "step_s": 0.1, "hold": str(bench.folder / "hold"), **params}
    bench.sweep(params=all_params, grid={"depth": list(range(2, 2 + num_packs))})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == min(num_packs, 8))
    return process


@pytest.mark.parametrize("how", ["hangs", "is away"])
def test_launch_ends_without_a_controller(bench: Bench, how: str) -> None:
    """Results are read from the store: a squeue of 8 s once hid them for three minutes."""
    bench.wrap("squeue", 'while [ -e hangs ]; do sleep 0.2; done; exec $REAL "$@"')
    process = begin(bench, 4)
    try:
        if how == "is away":
            bench.lab.stop_controller()
        else:
            (bench.folder / "hangs").touch()
        (bench.folder / "hold").unlink()
        assert "all 4 trials are committed" in bench.wait(process)
        assert not list((bench.url / "slurm").glob("*/*")), "jobs leave an end marker in their folder"
    finally:
        (bench.folder / "hangs").unlink(missing_ok=True)
        bench.lab.start_controller()
    bench.until(lambda: not bench.queue(), 300)  # nodes report ended jobs again only some time after a restart
    bench.run("run")
    bench.check(4, most_redone=0)


@pytest.mark.parametrize("what", ["--user", "the rest"])
def test_what_the_user_cancels_is_not_submitted_again(bench: Bench, what: str) -> None:
    """Elements that wait then share one line of squeue and of sacct."""
    calls = bench.folder / "calls"
    bench.wrap("sbatch", f'echo >> {calls}; exec $REAL "$@"')
    process = begin(bench, 12)
    waiting = [job for job, state, _ in bench.queue() if state == "PENDING"]
    assert len(waiting) == 4
    is_all = what == "--user"
    bench.lab.run("scancel", *([f"--user={getuser()}"] if is_all else waiting[:3]))
    (bench.folder / "hold").unlink()
    printed = bench.wait(process, code=130)
    left = re.search(r"cancelled with (\d+) trials to do. Resume: depthrate run", printed)
    assert left is not None and "submission stopped" in printed, printed
    assert len(calls.read_text()) == 1 and not bench.queue()
    assert int(left[1]) == 12 - bench.status()["ok"] >= (4 if is_all else 3)
    assert is_all or bench.status()["ok"] == 9, "the other jobs kept running"
    assert bench.status()["failed"] == 0
    bench.wait(bench.start())
    bench.check(12)


@pytest.fixture
def few(bench: Bench) -> Iterator[Bench]:
    """A cluster with a QOS that takes three jobs of a user."""
    lab = bench.lab
    for words in ("add qos three set MaxSubmitJobsPerUser=3", f"modify user {getuser()} set qos+=three,normal"):
        lab.run("sacctmgr", "--immediate", *words.split(), check=False)  # it may be there already
    lab.reconfigure(AccountingStorageEnforce="limits,qos")
    bench.profile |= {"job_min": 0, "array_parallelism": 8, "qos": "three"}
    yield bench
    lab.run("scancel", f"--user={getuser()}")
    lab.reconfigure()


def test_other_qos_keeps_its_limit(few: Bench) -> None:
    """They were once counted: nothing could be submitted."""
    others = ["sbatch", "--hold", "--qos=normal", "--array=0-9", "--output=/dev/null", "--wrap=true"]
    few.lab.run(*others, f"--chdir={few.folder}")
    command = ["sbatch", "--parsable", "--hold", "--qos=three", "--output=/dev/null", "--wrap=true"]
    other_job = few.lab.run(*command, f"--chdir={few.folder}").strip()
    (hold := few.folder / "hold").touch()
    few.sweep(params={"steps": 2, "step_s": 0.05, "hold": str(hold)}, grid={"depth": [2, 3, 5]})
    process, expected = (
        few.start(),
        "QOS three accepts 3 jobs of this user, and has 2 jobs of this launch, 1 other job of this user",
    )
    few.until(lambda: expected in events(few), 240)
    assert len(few.queue()) == 2
    hold.unlink()
    assert "all 3 trials are committed" in few.wait(process)
    few.lab.run("scancel", other_job)
    few.check(3, most_redone=0)


def events(bench: Bench) -> str:
    """Return the events that launches have logged."""
    return "".join(content.decode() for _, content in bench.store.read_many(bench.store.list("launches")))
