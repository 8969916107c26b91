"""How work gets into a real controller's queue: what surrounds a launch, limits, lost answers, other launches."""

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store
from tests.support.slurm_bench import Bench
from tests.support.slurm_lab import patience

pytestmark = pytest.mark.timeout(1800)
FEW = {"params": {"steps": 4, "step_s": 0.1}, "grid": {"depth": [2, 3, 5, 8]}}
"""Packs enough for several a job, done in a moment."""


def lost(bench: Bench) -> list[tuple[str, str]]:
    """Return (kind, error) of the attempts that did not end well."""
    failed = "select error_kind, error from attempts where state in ('lost', 'failed')"
    return results_of(bench.store).sql(failed).fetchall()


def test_a_launch_inside_a_job_of_its_own(bench: Bench) -> None:
    """Variables that describe the surrounding job, such as its memory, must not become requests of its own jobs."""
    bench.profile |= {"cpus": 2, "array_parallelism": 2}
    bench.sweep(**FEW)
    printed = bench.wait(bench.start(within=["srun", "--ntasks=1", "--mem-per-cpu=600"]))
    assert "this launch runs inside SLURM job" in printed and "New jobs do not inherit its settings" in printed
    bench.check(4, most_redone=0)
    assert not lost(bench)


def test_cluster_file_outranks_user_variables(bench: Bench) -> None:
    bench.environment |= {
        "SBATCH_PARTITION": "high",
        "SBATCH_EXPORT": "NONE",
        "SBATCH_TIMELIMIT": "1",
        "SQUEUE_STATES": "S",
    }
    bench.profile |= {"array_parallelism": 2}
    bench.sweep(**FEW)
    process = bench.start()
    bench.until(lambda: bool(bench.steps()))
    listed = bench.lab.run("squeue", "--noheader", "--name", ",".join(bench.job_names()), "--format=%P %l")
    assert {tuple(line.split()) for line in listed.splitlines()} == {("main", "10:00")}
    assert "ignored: SBATCH_EXPORT, SBATCH_PARTITION, SBATCH_TIMELIMIT, SQUEUE_STATES." in bench.wait(process)
    bench.check(4, most_redone=0)
    assert not lost(bench)


def test_jobs_that_were_accepted_although_sbatch_failed(bench: Bench) -> None:
    bench.wrap("sbatch", '$REAL "$@"; echo "sbatch: error: Batch job submission failed: Socket timed out" >&2; exit 1')
    bench.sweep(**FEW)
    bench.wait(bench.start())
    bench.check(4, most_redone=0)
    assert not lost(bench)


def test_a_driver_killed_in_mid_submit_costs_nothing(bench: Bench) -> None:
    """Its jobs run as they were accepted, and the next launch knows them by their name."""
    bench.wrap("sbatch", '[ -e killed ] && exec $REAL "$@"; touch killed; $REAL "$@"; kill -9 $PPID')
    bench.profile |= {"array_parallelism": 2}
    bench.sweep(**FEW)
    begun = time.monotonic()
    bench.wait(bench.start(), code=-9)
    printed = bench.wait(bench.start())
    done = int(re.search(r"(\d+) done", printed)[1])  # type: ignore[index]
    there = re.search(r"(\d+) packs? already submitted", printed)
    assert done + (int(there[1]) if there else 0) == 4, "no pack is resubmitted, whatever its progress"
    assert time.monotonic() - begun < 55 * patience(), "no job waited for packs that the driver could not submit"
    bench.check(4, most_redone=0)
    assert not lost(bench)


def test_lost_answer_is_resolved_later(bench: Bench) -> None:
    """sbatch accepts the jobs, then the controller is away: they are cancelled before their packs are resubmitted."""
    bench.profile |= {"array_parallelism": 2}
    hold = bench.folder / "hold"
    hold.touch()
    bench.sweep(params={**FEW["params"], "hold": str(hold)}, grid=FEW["grid"])
    bench.wrap("squeue", '[ -e deaf ] || exec $REAL "$@"; echo "Unable to contact slurm controller" >&2; exit 1')
    away = '$REAL "$@"; touch deaf; echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1'
    bench.wrap("sbatch", f'[ -e away ] && exec $REAL "$@"; touch away; {away}')
    printed = bench.run("run", code=2)
    assert "it is unknown whether it accepted the jobs" in printed
    assert bench.store.list("jobs"), "it stays on the books"
    (bench.folder / "deaf").unlink()
    process = bench.start()
    assert process.stdout is not None and any("4 packs already submitted" in line for line in process.stdout)
    hold.unlink()
    bench.wait(process)
    bench.check(4, most_redone=0)


def test_two_launches_at_the_same_moment_submit_once(bench: Bench) -> None:
    """One launch submits. The other waits, and adopts its jobs when it exits."""
    bench.profile |= {"array_parallelism": 2}
    bench.sweep(params={"steps": 10, "step_s": 0.2}, grid={"depth": [2, 3, 5, 8, 13, 21]})
    launches = [bench.start(), bench.start()]
    bench.until(lambda: bool(bench.steps()))
    assert len(set(bench.job_names())) == 1, "one array"
    launches.sort(key=lambda launch: launch.pid)
    launches[0].send_signal(signal.SIGINT)
    assert "detached with" in bench.wait(launches[0], code=130)
    bench.wait(launches[1])
    bench.check(6, most_redone=0)
    assert not lost(bench)


def test_concurrent_detached_launches_submit_once(bench: Bench) -> None:
    bench.sweep(**FEW)
    launches = [bench.start("--detach"), bench.start("--detach")]
    for launch in launches:
        printed = bench.wait(launch)
        assert "4 packs submitted" in printed or "4 packs are claimed by another launch" in printed, printed
    assert len(bench.store.list("jobs")) == 1, "one array"
    bench.wait(bench.start())
    bench.check(4, most_redone=0)


MANY = {"params": {"steps": 2, "step_s": 0.05}, "grid": {"depth": [2, 3, 5, 8]}}
"""One pack a job."""


@pytest.fixture
def limited(bench: Bench) -> Iterator[Bench]:
    """A sweep on a cluster that takes three jobs of a user."""
    bench.profile["array_parallelism"] = 4
    bench.sweep(**MANY)
    bench.lab.limit_submitted(3)
    yield bench
    bench.lab.limit_submitted(None)


def test_overflow_is_submitted_later(limited: Bench) -> None:
    process, most = limited.start(), 0
    while process.poll() is None:
        most = max(most, len(limited.queue()))
        time.sleep(0.5)
    assert "all 4 trials are committed" in limited.wait(process) and most <= 3
    limited.check(4, most_redone=0)


@pytest.mark.parametrize("how", ["said", "unknown"])
def test_detached_launch_counts_unsubmitted_packs(limited: Bench, how: str) -> None:
    if how == "unknown":
        limited.wrap("sacctmgr", "exit 1")
    (hold := limited.folder / "hold").touch()
    limited.sweep(params={**MANY["params"], "hold": str(hold)}, grid=MANY["grid"])
    printed = limited.run("run", "--detach", code=1)
    hold.unlink()
    rest = re.search(
        r"(\d) packs? (?:is|are) not submitted: (.*). Submit more once jobs have ended: depthrate", printed
    )
    assert rest is not None and int(rest[1]) == 1
    assert (
        "accepts 3 jobs of this user, and has 3 jobs of this launch" if how == "said" else "sbatch refused"
    ) in rest[2]
    limited.until(lambda: not limited.queue(), 120)
    assert limited.status()["ok"] == 4 - int(rest[1])
    limited.wait(limited.start())
    limited.check(4, most_redone=0)


def test_detached_launch_names_other_jobs(limited: Bench) -> None:
    """They fill the limit, so that one pack of four has a place."""
    sbatch = ["sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 300", f"--chdir={limited.folder}"]
    others = [limited.lab.run(*sbatch).strip() for _ in range(2)]
    printed = limited.run("run", "--detach", code=1)
    limited.lab.run("scancel", *others)
    assert "3 packs are not submitted: account " in printed
    assert "accepts 3 jobs of this user, and has 1 job of this launch, 2 other jobs of this user. Submit" in printed
    limited.until(lambda: not limited.queue(), 120)
    text = limited.run("status", limited.name)
    assert "no launch or job works on 3 pending trials. Run: depthrate run" in text
    limited.wait(limited.start())
    limited.check(4, most_redone=0)


@pytest.fixture
def department(bench: Bench) -> Iterator[Bench]:
    """A sweep of an account below a department, one of whose other accounts has a job."""
    run = bench.lab.run
    user = getuser()
    for words in ("account dept", "account sub parent=dept", "account other parent=dept", "qos part"):
        run("sacctmgr", "--immediate", "add", *words.split(), check=False)  # they stay for the next test
    for account in ("sub", "other"):
        run("sacctmgr", "--immediate", "add", "user", user, f"account={account}", "cluster=lab", check=False)
    bench.until(lambda: "UserName=" in run("scontrol", "show", "assoc_mgr", "accounts=sub", "flags=assoc"))
    bench.profile |= {"account": "sub", "partition": "high", "extra": ["--hold"]}
    bench.sweep(**MANY)
    held = run("sbatch", "--parsable", "--hold", "--account=other", "--partition=high", "--wrap=true").strip()
    yield bench
    run("scancel", held)
    run("scancel", "--account=sub")
    bench.until(lambda: not bench.queue())
    run("scontrol", "update", "PartitionName=high", "QOS=")


ONE_HELD = "2 jobs of this launch, 1 other job of this user"


REFUSED = "Job violates accounting/QOS policy"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("account dept set GrpSubmitJobs=3", f"account dept accepts 3 jobs of all users, and has {ONE_HELD}"),
        ("account dept set GrpSubmitJobs=3", REFUSED),
        ("account root set GrpSubmitJobs=3", f"account root accepts 3 jobs of all users, and has {ONE_HELD}"),
        ("account sub set GrpSubmitJobs=2", "account sub accepts 2 jobs of all users, and has 2 jobs of this launch"),
        ("account sub set MaxSubmitJobs=2", "account sub accepts 2 jobs of this user, and has 2 jobs of this launch"),
        ("qos part set GrpSubmitJobs=3", f"partition high accepts 3 jobs of all users, and has {ONE_HELD}"),
        ("qos part set MaxSubmitJobsPerUser=3", f"partition high accepts 3 jobs of this user, and has {ONE_HELD}"),
        ("qos part set MaxSubmitJobsPerAccount=2", "account sub, partition high accepts 2 jobs of all users"),
        ("qos part set MaxSubmitJobsPerAccount=2", REFUSED),
    ],
)
def test_limits_of_accounts_and_partitions(department: Bench, words: str, shown: str) -> None:
    """The limit is named, or sbatch's refusal if the accounting does not answer, and never the rate of sbatch."""
    lab = department.lab
    lab.run("scontrol", "update", "PartitionName=high", "QOS=part")
    lab.run("sacctmgr", "--immediate", "modify", *words.split())
    limit = words.rpartition(" ")[2].replace("PerUser", "PU").replace("PerAccount", "PA")
    department.until(lambda: f"{limit}(" in lab.run("scontrol", "show", "assoc_mgr", "flags=assoc,qos"))
    if shown is REFUSED:
        department.wrap("sacctmgr", "exit 1")
    process, printed = department.start(), ""
    try:
        assert process.stdout is not None
        while "waiting for submission" not in printed:
            printed = process.stdout.readline()
            assert printed
        assert shown in printed and len(department.queue()) == 2
    finally:
        process.send_signal(signal.SIGINT)
        department.wait(process, code=130)
        lab.run("sacctmgr", "--immediate", "modify", *re.sub(r"=\d+", "=-1", words).split())


def test_an_account_that_is_closed_is_refused(department: Bench) -> None:
    department.lab.run("sacctmgr", "--immediate", "modify", "account", "dept", "set", "GrpSubmitJobs=0")
    assert "account dept accepts no jobs: its limit is 0" in department.run("plan", code=2)


def test_how_often_slurm_is_asked(bench: Bench) -> None:
    """As documented in docs/cluster.md. Requests from jobs count too, because jobs inherit the PATH."""
    calls = bench.folder / "calls"
    for program in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sacctmgr"):
        bench.wrap(program, f'echo "{program} $*" >> {calls}; exec $REAL "$@"')
    bench.sweep(params={"steps": 200, "step_s": 0.1}, grid={"depth": [2, 3, 5, 8]})
    bench.wait(bench.start())
    bench.check(4, most_redone=0)
    lines = calls.read_text().replace(" --all --oneliner", "").splitlines()
    counts = Counter(" ".join(line.split()[: 3 if " show " in line else 1]) for line in lines)
    print(dict(counts))
    assert counts["sbatch"] == 1 and not counts["scancel"] and counts["sacct"] <= 2
    # by the run: `status` asks only where a sweep has jobs
    assert [counts[f"scontrol show {what}"] for what in ("config", "node", "partition")] == [1, 1, 1]
    assert not counts["scontrol show job"] and not counts["scontrol"], "a job that is left alone asks nothing"
    assert counts["squeue"] <= 20, "20 s of work"


def test_thousand_jobs_respect_the_limits(bench: Bench) -> None:
    """Arrays have at most 100 jobs (MaxArraySize). The accounting limits the QOS to 250 jobs per user."""
    lab, hold = bench.lab, bench.folder / "hold"
    hold.touch()
    for words in ("add qos few set MaxSubmitJobsPerUser=250", f"modify user {getuser()} set qos+=few"):
        lab.run("sacctmgr", "--immediate", *words.split())
    lab.reconfigure(AccountingStorageEnforce="limits,qos")
    try:
        bench.profile |= {"qos": "few", "job_min": 0, "array_parallelism": 250, "cpus": 2}
        params = {"steps": 1, "hold": str(hold)}
        bench.sweep(params=params, grid={"depth": list(range(2, 2002))})
        plan = json.loads(bench.run("plan", "--json"))
        assert len(plan["packs"]) == 2000 and plan["jobs"] == 1000 and plan["arrays"] == 10
        assert re.search(r"1,[45]\d\d packs are not submitted", bench.run("run", "--detach", code=1))
        bench.until(lambda: len(bench.queue()) == 250, 120)
        time.sleep(10 * patience())
        sizes = Counter(job.partition("_")[0] for job, _, _ in bench.queue())
        print(dict(sizes))
        assert sum(sizes.values()) == 250 and max(sizes.values()) <= 100
        bench.run("cancel", bench.name)
        bench.until(lambda: not bench.queue())
        state = bench.status()
        assert state["failed"] == state["ok"] == 0 and state["pending"] >= 1980, "some had begun"
    finally:
        hold.unlink(missing_ok=True)
        lab.reconfigure()


def test_jobs_run_their_submitted_code(bench: Bench) -> None:
    """The resumed launch also reports a task file that changed in the meantime."""
    file, body = bench.folder / "mine.py", "return {'metrics': [{'layer': depth, 'nc1': %s}]}"
    lines = ["import depthrate", "@depthrate.task(version=1)", "def mine(*, depth: int, context):", f"    {body}"]
    file.write_text("\n".join(lines) % 1.0)
    bench.sweep("mine", grid={"depth": [2, 3]})
    spec = yaml.safe_load((bench.folder / "sweep.yaml").read_text()) | {"task": f"{file}:mine"}
    (bench.folder / "sweep.yaml").write_text(yaml.safe_dump(spec))
    bench.profile["extra"] = ["--hold"]
    bench.run("run", "--detach")
    file.write_text("\n".join(lines) % 2.0)
    refused = bench.run("run", code=2)
    assert "the code of task" in refused and "2 packs in flight" in refused
    bench.lab.run("scontrol", "release", *{job.partition("_")[0] for job, _, _ in bench.queue()})
    bench.until(lambda: not bench.queue())
    bench.run("run", "--keep-results")
    bench.check(2)
    assert results_of(bench.store).sql("select distinct nc1 from metrics").fetchall() == [(1.0,)]


def test_a_drained_node_may_have_any_reason(bench: Bench) -> None:
    bench.sweep(**FEW)
    for reason in (b"NHC: RealMemory=515000MB Gres=gpu:fake:99 Partitions=x", "câble débranché".encode("latin-1")):
        bench.lab.run("scontrol", "update", "nodename=n3", "state=drain", "reason=" + os.fsdecode(reason))
        assert json.loads(bench.run("plan", "--json"))["jobs"] == 4
    try:
        bench.wait(bench.start())
        bench.check(4, most_redone=0)
    finally:
        bench.lab.resume_node("n3")


def test_placeholders_in_the_path_of_the_store(bench: Bench, tmp_path: Path) -> None:
    bench.environment["HOME"] = str(tmp_path / "home")
    bench.url = tmp_path / "lr%j" / "x%A%%"
    bench.store = Store(str(bench.url))
    bench.sweep(**FEW)
    bench.wait(bench.start())
    bench.check(4, most_redone=0)
    bench.profile["folder"] = str(tmp_path / "jobs-%x")
    assert f"folder is {tmp_path}/jobs-%x" in bench.run("plan", code=2)


def test_refusals_for_good_end_the_launch(bench: Bench) -> None:
    bench.sweep(**FEW)
    bench.profile["extra"] = ["--licenses=matlab:5"]
    assert "Batch job submission failed: Invalid license specification" in bench.run("run", code=2)
    del bench.profile["extra"]
    bench.profile["exclude"] = ["n[1-3]", "n4"]
    assert "none of the 4 nodes of partition main meets" in bench.run("run", code=2)
    assert not bench.queue()
    bench.profile["exclude"] = ["n[1-3]"]
    bench.wait(bench.start())
    bench.check(4, most_redone=0)
    assert {node for *_, node in bench.steps()} == {"n4"}
