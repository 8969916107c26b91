"""What clusters do to jobs, on a real controller: afterwards every trial is committed once and little work was done twice."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store
from tests.support.slurm_bench import CHECKPOINT_S, Bench

pytestmark = pytest.mark.timeout(1800)  # only for what hangs: a busy machine takes many times longer than a quiet one
ATTACHES = int(os.environ.get("DEPTHRATE_TEST_ATTACHES") or 5)
"""Number of times that a running sweep is disturbed. Use 20 for the long form."""


def num_jobs(bench: Bench) -> int:
    """Return the number of jobs that this sweep has run."""
    listed = bench.lab.run("squeue", "--noheader", "--array", "--states=all", "--format=%j %N")
    return sum(f"depthrate-{bench.name}-" in line and len(line.split()) == 2 for line in listed.splitlines())


def attempts_on(bench: Bench, node: str) -> list[tuple[str, str]]:
    """Return (state, job) of the attempts recorded on a node."""
    query = f"select state, job_id from attempts where host = '{node}' order by started_at"
    return results_of(bench.store).sql(query).fetchall() if bench.store.list("attempts") else []


def test_detached_equals_local(bench: Bench) -> None:
    params = {"arch": "rn1", "samples_per_class": 5, "steps": 60, "width": 16, "record": "all"}
    bench.sweep(params=params, grid={"depth": [2, 3]}, seeds=2, fit=[{"metric": "nc1"}])
    spec = yaml.safe_load((bench.folder / "sweep.yaml").read_text())
    spec |= {"task": "collapse", "params": params}
    (bench.folder / "sweep.yaml").write_text(yaml.safe_dump(spec))
    assert "packs submitted" in bench.run("run", "--detach")
    bench.run("status", "--watch", bench.name)
    bench.run("fit", bench.name)
    local = [sys.executable, "-m", "depthrate", "run", str(bench.folder / "sweep.yaml")]
    subprocess.run([*local, "--store", str(bench.folder / "local")], check=True, capture_output=True)
    numbers = "select trial_id, step, layer, nc1, nc2a, nc3 from metrics order by all"
    found = results_of(bench.store).sql(numbers).fetchall()
    assert found == results_of(Store(str(bench.folder / "local"))).sql(numbers).fetchall() and len(found) > 20
    bench.run("run")  # takes what is over off the books
    bench.check(4)
    assert not list((bench.url / "slurm").glob("*/*")), "the job folders are removed too"


def test_preemption_by_a_stronger_partition(bench: Bench) -> None:
    bench.sweep(params={"steps": 80, "step_s": 0.25}, grid={"depth": [2, 3]})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2)
    stronger = ["sbatch", "--parsable", "--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null"]
    job = bench.lab.run(*stronger, "--wrap=sleep 6", f"--chdir={bench.folder}").strip()
    bench.until(lambda: "RUNNING" in bench.lab.run("squeue", "-h", "-j", job, "-o", "%T", check=False))
    assert all(state != "RUNNING" for _, state, _ in bench.queue())
    assert "requeued by themselves after SIG" in bench.wait(process)
    bench.check(2, most_redone=0)


def test_an_administrator_requeues_a_job(bench: Bench) -> None:
    bench.sweep(params={"steps": 60, "step_s": 0.2}, grid={"depth": [2]})
    process = bench.start()
    bench.until(lambda: bool(bench.store.list("checkpoints")))
    bench.lab.run("scontrol", "requeue", bench.queue()[0][0])
    printed = bench.wait(process)
    assert "requeued for an unknown cause and resuming from their checkpoints" in printed
    bench.check(1, most_redone=1)


def test_a_node_dies_before_anything_starts_there(bench: Bench) -> None:
    bench.profile["setup"] = ["sleep 15"]
    bench.sweep(params={"steps": 5}, grid={"depth": [2]})
    process = bench.start()
    bench.until(lambda: [state for _, state, _ in bench.queue()] == ["RUNNING"])
    node = bench.queue()[0][2]
    time.sleep(3)  # SLURM counts no restart of a job whose script has not started
    bench.lab.kill_node(node)
    bench.lab.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        printed = bench.wait(process)
    finally:
        bench.lab.resume_node(node)
    assert f"1 job on {node} lost with their node, requeued\n" in printed
    bench.check(1, most_redone=0)


def test_one_job_is_cancelled_by_hand(bench: Bench) -> None:
    """The others run to their end, and the cancelled job's packs are left to another launch."""
    bench.sweep(params={"steps": 60, "step_s": 0.2}, grid={"depth": [2, 3, 5]})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 3)
    bench.lab.run("scancel", bench.queue()[0][0])
    printed = bench.wait(process, code=130)
    assert "left pending, submission stopped: job " in printed and "requeued" not in printed
    assert "was cancelled" in printed and "cancelled with 1 trial to do. Resume: depthrate run" in printed
    assert bench.status()["ok"] == 2 and bench.status()["pending"] == 1
    bench.wait(bench.start())
    bench.check(3, most_redone=1)


def test_live_curves_survive_a_kill(bench: Bench) -> None:
    (hold := bench.folder / "hold").touch()
    bench.profile["mem_gb"] = 2.5  # a node has room for one job, so that one is killed
    bench.sweep("curved", params={"hold": str(hold)}, grid={"depth": [2, 3]})
    process = bench.start()

    def seen() -> dict[int, tuple[str, int]]:
        query = "select depth, attempt_id, count(*), max(step) from live group by all"
        rows = results_of(bench.store).sql(query).fetchall() if bench.store.list("live") else []
        return {depth: (attempt, number) for depth, attempt, number, last in rows if last == 99}

    bench.until(lambda: len(seen()) == 2)
    first = seen()
    assert [number for _, number in first.values()] == [100, 100] and len(bench.queue()) == 2
    assert "loss" in bench.run("status", bench.name)
    for pid in bench.lab.job_pids(bench.queue()[0][2]):
        os.kill(pid, signal.SIGKILL)
    bench.until(lambda: len(seen()) == 2 and len(set(seen().items()) - set(first.items())) == 1, seconds=150)
    assert [number for _, number in seen().values()] == [100, 100], "the rows of the killed attempt are not among them"
    hold.unlink()
    bench.wait(process)
    assert bench.store.list("live") == {}
    query = "select depth, count(distinct step), min(loss) from curves join trials using (trial_id) group by all"
    assert sorted(results_of(bench.store).sql(query).fetchall()) == [(2, 100, 1 / 101), (3, 100, 1 / 102)]
    bench.check(2)


def test_everything_is_cancelled_by_hand(bench: Bench) -> None:
    bench.sweep(params={"steps": 200, "step_s": 0.2}, grid={"depth": [2, 3]})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2)
    bench.lab.run("scancel", bench.queue()[0][0].partition("_")[0])
    assert "cancelled with 2 trials to do. Resume: depthrate run" in bench.wait(process, code=130)
    assert bench.status()["pending"] == 2 and not bench.queue()


def test_pack_spans_several_jobs(bench: Bench) -> None:
    bench.profile |= {"walltime_min": 1, "signal_s": 15}
    bench.sweep(params={"steps": 200, "step_s": 0.25}, grid={"depth": [2]})
    assert "1 to run" in bench.wait(bench.start())
    bench.check(1, most_redone=1)
    attempts = results_of(bench.store).sql("select state from attempts order by started_at").fetchall()
    assert attempts[-1] == ("done",) and attempts.count(("interrupted",)) >= 1


def test_a_node_dies(bench: Bench) -> None:
    bench.sweep(params={"steps": 60, "step_s": 0.2}, grid={"depth": [2, 3]})
    process = bench.start()
    bench.until(lambda: len(bench.steps()) > 30)
    node = next(step[3] for step in reversed(bench.steps()))
    bench.lab.kill_node(node)
    try:
        bench.wait(process)
    finally:
        bench.lab.resume_node(node)
    bench.check(2, most_redone=2 * round((CHECKPOINT_S + 1) / 0.2))


@pytest.mark.skipif(
    not os.environ.get("DEPTHRATE_TEST_LONG"), reason="a node is lost three times. Set DEPTHRATE_TEST_LONG."
)
def test_node_dying_thrice_is_excluded(bench: Bench) -> None:
    """It is the only available node at first, so the same job is lost on it repeatedly."""
    others = "n1,n3,n4"
    bench.lab.run("scontrol", "update", f"nodename={others}", "state=drain", "reason=test")
    bench.profile |= {"job_min": 0, "array_parallelism": 3, "mem_gb": 2.5}
    bench.sweep("stubborn", params={"seconds": 25.0}, grid={"depth": [*range(2, 10)]})
    process = bench.start()
    deaths = 3
    try:
        for death in range(1, deaths + 1):
            bench.until(lambda death=death: len(attempts_on(bench, "n2")) == death, 120)  # type: ignore[misc]
            time.sleep(5)
            bench.lab.kill_node("n2")
            bench.lab.run("scontrol", "update", "nodename=n2", "state=down", "reason=died")
            if death < deaths:
                bench.lab.resume_node("n2")
        bench.lab.run("scontrol", "update", f"nodename={others}", "state=resume")
        bench.until(lambda: bench.status()["ok"] >= 1, 120)
    finally:
        bench.lab.resume_node("n2")
        bench.lab.run("scontrol", "update", f"nodename={others}", "state=resume", check=False)
    printed = bench.wait(process)
    bench.check(8)
    assert "failed on n2" in printed and "Excluded. Once it is repaired" in printed
    on_n2 = attempts_on(bench, "n2")
    assert [state for state, _ in on_n2] == ["lost"] * deaths, "and no attempt that runs forever"
    jobs = ",".join({job.partition("_")[0] for _, job in on_n2})
    listed = ["--allocations", "--duplicates", "--parsable2", f"--jobs={jobs}", "--format=State,ElapsedRaw"]
    starts = [line.split("|") for line in bench.lab.run("sacct", "-n", *listed).splitlines()]
    held_s = [int(elapsed_s) for state, elapsed_s in starts if state == "NODE_FAIL"]
    nodes = {node["node"]: node for node in json.loads(bench.run("nodes", bench.name, "--json"))}
    wasted_s = 3600 * sum(node["wasted_hours"] for node in nodes.values())
    assert len(held_s) == deaths and wasted_s == pytest.approx(sum(held_s), rel=0.05)
    assert nodes["n2"]["failures"] == {"node_lost": deaths}
    assert "3 of 3 attempts failed on n2" in nodes["n2"]["avoided"]


def test_the_controller_restarts_in_the_middle(bench: Bench) -> None:
    bench.sweep(params={"steps": 60, "step_s": 0.2}, grid={"depth": [2, 3, 5, 8]})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 4)
    bench.lab.stop_controller()
    time.sleep(6)
    bench.lab.start_controller()
    bench.wait(process)
    bench.check(4, most_redone=2)


def test_accounting_is_away(bench: Bench) -> None:
    bench.sweep(params={"steps": 10}, grid={"depth": [2, 3]})
    bench.lab.stop_accounting()
    try:
        bench.wait(bench.start())
        bench.check(2, most_redone=0)
    finally:
        bench.lab.start_accounting()


def test_too_little_memory_halves_the_pack(bench: Bench) -> None:
    """Each half has a job's memory for itself, although a job has a CPU for both."""
    bench.profile |= {"mem_gb": 1.2, "array_parallelism": 1, "cpus": 2}
    bench.sweep("hungry", params={"depth": 2}, seeds=4)
    bench.wait(bench.start())
    bench.check(4)
    query = "select distinct len(trial_ids), error_kind from attempts where state = 'lost'"
    assert results_of(bench.store).sql(query).fetchall() == [(2, "out_of_memory")]


def test_an_exception_is_retried_once_and_reported(bench: Bench) -> None:
    bench.sweep("cursed", grid={"depth": [2, 3, 5]})
    printed = bench.wait(bench.start(), code=1)
    assert "RuntimeError: depth 3 is cursed" in printed
    state = bench.status()
    assert state["ok"] == 2 and state["failed"] == 1
    assert results_of(bench.store).sql("select count(*) from attempts where state = 'failed'").fetchall() == [(2,)]


def test_the_driver_is_killed_and_another_goes_on(bench: Bench) -> None:
    hold = bench.folder / "hold"
    hold.touch()
    bench.sweep(params={"steps": 20, "step_s": 0.2, "hold": str(hold)}, grid={"depth": [2, 3]})
    first = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2)
    first.kill()
    first.wait()
    assert bench.status()["running"] == 2
    second = bench.start()
    assert second.stdout is not None
    assert any("2 packs already submitted" in line for line in second.stdout)
    hold.unlink()
    bench.wait(second)
    bench.check(2, most_redone=0)


def test_resuming_at_random_moments(bench: Bench) -> None:
    """Jobs have committed some of their packs, run one, and have others to do."""
    moment = random.Random(seed := random.SystemRandom().randrange(1000))
    print("moments of seed", seed)
    num_trials = 16 + 4 * ATTACHES
    bench.profile |= {"array_parallelism": 2}
    bench.measure(params={"steps": 12}, grid={"depth": [2]})
    bench.sweep(params={"steps": 12}, grid={"depth": list(range(2, 2 + num_trials))})
    plan = json.loads(bench.run("plan", "--json"))
    assert plan["jobs"] == 2 and len(plan["packs"]) >= 6
    bench.run("run", "--detach")
    bench.until(lambda: len({step[0] for step in bench.steps()}) > 1)
    for _ in range(ATTACHES):
        process = bench.start()
        assert process.stdout is not None
        head = next((line for line in process.stdout if "already submitted" in line or "committed" in line), "no word")
        if "committed" in head:  # this machine is slow, and the sweep is done before we are
            bench.wait(process)
            break
        time.sleep(moment.uniform(0, 2))
        process.send_signal(signal.SIGINT)
        printed = head + process.communicate(timeout=600)[0]
        assert process.returncode in (0, 130) and "Traceback" not in printed, printed
    bench.wait(bench.start())
    bench.until(lambda: not bench.queue())
    bench.run("run")  # takes what is over off the books
    bench.check(num_trials, most_redone=0)


def test_leaving_cancelling_and_going_on(bench: Bench) -> None:
    hold = bench.folder / "hold"
    hold.touch()  # on a busy machine the jobs would end before the launch has left
    bench.sweep(params={"steps": 40, "step_s": 0.2, "hold": str(hold)}, grid={"depth": [2, 3]})
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2)
    process.send_signal(signal.SIGINT)
    assert "the jobs continue. Cancel them: depthrate cancel" in bench.wait(process, code=130)
    assert len(bench.queue()) == 2
    assert "2 jobs of" in bench.run("cancel", bench.name)
    bench.until(lambda: not bench.queue())
    assert bench.status()["pending"] == 2
    hold.unlink()
    bench.wait(bench.start())
    bench.check(2, most_redone=2)


def test_exceeded_limits_are_refused_early(bench: Bench) -> None:
    bench.sweep(grid={"depth": [2]})
    for changes, message in (
        ({"partition": "gpu"}, "partition is 'gpu', which this cluster does not have. Set it to one of high, main"),
        ({"walltime_min": 121}, "walltime_min is 121, but partition main allows 120 minutes"),
        ({"gpus": 3}, "gpus is 3, but the largest node of partition main has 2"),
        ({"cpus": 3}, "cpus is 3, but the largest node of partition main has 2"),
        ({"mem_gb": 5}, "mem_gb is 5, but the largest node of partition main has 3.9"),
    ):
        usual = bench.profile
        bench.profile = usual | changes
        assert message in bench.run("plan", code=2)
        bench.profile = usual
    bench.sweep(grid={"depth": list(range(2001, 4003))})
    bench.profile |= {"job_min": 0, "array_parallelism": 2000}
    assert "2002 jobs exceed the cluster's limit (MaxJobCount=2000)" in bench.run("run", code=2)
    assert not bench.queue() and not bench.store.list()


def test_jobs_at_once_are_bounded_over_all_arrays(bench: Bench) -> None:
    bench.lab.reconfigure(MaxArraySize=4)
    try:
        bench.profile |= {"job_min": 0, "array_parallelism": 2}
        bench.sweep(params={"steps": 10}, grid={"depth": list(range(2, 9))})
        process, running = bench.start(), []
        while process.poll() is None:
            running.append(sum(state == "RUNNING" for _, state, _ in bench.queue()))
            time.sleep(0.2)
        bench.wait(process)
    finally:
        bench.lab.reconfigure()
    bench.check(7, most_redone=0)
    assert max(running) == 2


@pytest.mark.skipif(not os.environ.get("DEPTHRATE_TEST_LONG"), reason="takes two time limits. Set DEPTHRATE_TEST_LONG.")
def test_no_checkpoints_within_the_time_limit(bench: Bench) -> None:
    bench.profile |= {"walltime_min": 1}
    bench.sweep("stubborn", params={"depth": 2})
    printed = bench.wait(bench.start(), code=1)
    assert "reached its time limit of 1 min before the task saved anything" in printed
    kinds = results_of(bench.store).sql("select error_kind from attempts").fetchall()
    assert kinds == [("timeout",)] * 2 and bench.status()["failed"] == 1


def test_packs_fill_the_slots_of_few_jobs(bench: Bench) -> None:
    bench.profile |= {"cpus": 2}
    bench.sweep(params={"steps": 20}, grid={"depth": list(range(2, 8))})
    plan = json.loads(bench.run("plan", "--json"))
    assert plan["jobs"] == 3 and plan["share_of_slots_used"] == 1
    process = bench.start()
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 6)
    assert len(bench.queue()) == 3 and len({step[3] for step in bench.steps()}) == 3
    bench.wait(process)
    bench.check(6, most_redone=0)


def test_a_node_ends_every_job_at_once(bench: Bench) -> None:
    """It is idle whenever jobs wait, so without care it would take them all."""
    del bench.profile["failed_start_s"]  # the default
    bench.profile |= {"job_min": 0, "array_parallelism": 4, "setup": ['[ "$SLURMD_NODENAME" != n2 ] || exit 7']}
    bench.sweep(params={"steps": 5}, grid={"depth": list(range(2, 14))})
    printed = bench.wait(bench.start())
    assert "node n2: 2 jobs ended before depthrate started" in printed
    bench.check(12, most_redone=0)
    assert {step[3] for step in bench.steps()} <= {"n1", "n3", "n4"}
    lost = results_of(bench.store).sql("select distinct error_kind from attempts where state = 'lost'").fetchall()
    assert lost == [("not_begun",)] and num_jobs(bench) <= 12 + 4, "its two CPUs, and at most once more"


def test_a_node_on_which_trials_fail_is_avoided(bench: Bench) -> None:
    """It is idle whenever jobs wait, so without care it would eat the sweep."""
    error = "it is broken here"
    bench.profile |= {"job_min": 0, "array_parallelism": 4, "mem_gb": 2.5}
    bench.sweep(
        "sickened", params={"trace": str(bench.trace), "node": "n2", "error": error}, grid={"depth": [*range(2, 18)]}
    )
    printed = bench.wait(bench.start())
    bench.check(16)
    failed = results_of(bench.store).sql("select host, error_kind from attempts where state = 'failed'").fetchall()
    assert {host for host, _ in failed} == {"n2"} and len(failed) <= 3
    assert "code" in {kind for _, kind in failed}
    told_of_n2 = [line for line in printed.splitlines() if "failed on n2" in line]
    assert told_of_n2 and all(error in line for line in told_of_n2), printed
    assert all("Excluded for 2 min" in line or "Excluded. Once it is repaired" in line for line in told_of_n2)
    (node,) = [node for node in json.loads(bench.run("nodes", bench.name, "--json")) if node["node"] == "n2"]
    assert sum(node["failures"].values()) == len(failed)
    if len(failed) > 1:  # one failure is not enough, and speaks against a node for two minutes
        assert "failed on n2" in node["avoided"]


def test_a_slow_node_is_named_once(bench: Bench) -> None:
    bench.profile |= {"job_min": 0, "array_parallelism": 4, "mem_gb": 2.5}
    bench.sweep("slowed", params={"depth": 2, "node": "n2", "factor": 6.0}, seeds=20)
    printed = bench.wait(bench.start())
    (line,) = [line for line in printed.splitlines() if "times slower than others" in line]
    factor = re.match(r"node n2 is (\d+\.\d) times slower than others: .* s per step, median of [34] nodes ", line)
    assert factor is not None and float(factor[1]) > 3, line
    bench.check(20)


def test_failure_on_every_node_stops(bench: Bench) -> None:
    bench.profile |= {"job_min": 0, "array_parallelism": 4}
    bench.sweep(
        "sickened", params={"trace": str(bench.trace), "node": "all", "error": "a bug"}, grid={"depth": [*range(2, 26)]}
    )
    printed = bench.wait(bench.start(), code=1)
    assert "stopped early" in printed and "Excluded" not in printed
    assert 1 <= printed.count("RuntimeError: a bug") <= 2, "a line as it happens, and one at the end"
    (last,) = [line for line in printed.splitlines() if "RuntimeError: a bug" in line and "See: depthrate logs" in line]
    assert " packs on n" in last
    assert list(bench.status()["errors"]) == ["RuntimeError: a bug"]


def test_a_setup_line_fails_everywhere(bench: Bench) -> None:
    bench.profile |= {"job_min": 0, "setup": ["nonesuch --load cuda", "echo not reached"]}
    bench.sweep(grid={"depth": list(range(2, 42))})
    printed = bench.wait(bench.start(), code=1)
    assert "a setup line ended with code 127: nonesuch --load cuda" in printed
    bench.until(lambda: not bench.queue())
    assert num_jobs(bench) <= 40, "nothing was tried again"
    state = bench.status()
    assert state["failed"] >= 3 and state["failed"] + state["pending"] == 40 and len(state["errors"]) == 1
    # all jobs may have failed before the launch reads that the first three did, or after it stopped early
    assert "stopped early" in printed or state["pending"] == 0, printed


def test_a_setup_line_fails_everywhere_and_nobody_looks(bench: Bench) -> None:
    bench.profile |= {"job_min": 0, "setup": ["nonesuch --load cuda"]}
    bench.sweep(grid={"depth": [2, 3, 5, 8]})
    bench.run("run", "--detach")
    bench.until(lambda: not bench.queue())
    expected = "4 trials failed with: job "
    output = bench.run("status", bench.name)
    assert expected in output and "a setup line ended with code 127: nonesuch --load cuda" in output
    trial_id = json.loads(bench.run("plan", "--json"))["packs"][0]["trial_ids"][0]
    assert "nonesuch --load cuda" in bench.run("logs", trial_id)
    assert bench.status()["failed"] == 4 and bench.status()["pending"] == 0
    del bench.profile["setup"]
    bench.wait(bench.start())
    bench.check(4)


def test_launch_in_a_job(bench: Bench) -> None:
    """The guide's batch script. Near its time limit the launch detaches and the job is requeued."""
    (hold := bench.folder / "hold").touch()
    bench.sweep(params={"steps": 20, "step_s": 0.1, "hold": str(hold)}, grid={"depth": [2, 3]})
    job = bench.submit_script("slurm", "--time=10")
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2, 120)
    bench.lab.run("scancel", "--batch", "--signal=USR2", job)  # as SLURM does before the time limit
    bench.until(lambda: bench.state_of(job) == "PENDING", 60)
    assert len(bench.queue()) == 2, "the jobs of the sweep go on"
    output = bench.folder / f"slurm-{job}.out"
    assert "detaching: the jobs keep running" in output.read_text()
    bench.until(lambda: "2 packs already submitted" in output.read_text(), 120)
    hold.unlink()
    bench.until(lambda: bench.state_of(job) == "COMPLETED", 120)
    assert "all 2 trials are committed" in output.read_text()
    bench.check(2, most_redone=0)


@pytest.mark.ray
def test_ray_in_a_job(bench: Bench) -> None:
    """The guide's batch script on one node: requeued near its time limit, it goes on from the checkpoints."""
    pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")
    bench.wrap(
        "scontrol", '[ "$2" = hostnames ] && hostname -I | cut -d" " -f1 && exit; exec $REAL "$@"'
    )  # no host has a node's name
    # a machine of its own: `ray symmetric-run` looks for each Ray that it sees, and stops it at its end
    alone = "[ $1 = symmetric-run ] && alone='unshare --pid --fork --kill-child --mount-proc'"
    ray = f'{alone}\nexec $alone {sys.executable} -m ray.scripts.scripts "$@"'
    (bench.folder / "bin" / "ray").write_text(f"#!/bin/bash\n{ray}\n")
    (bench.folder / "bin" / "ray").chmod(0o755)
    (hold := bench.folder / "hold").touch()
    bench.sweep(params={"steps": 30, "step_s": 0.2, "hold": str(hold)}, grid={"depth": [2, 3]})
    job = bench.submit_script("ray", "--nodes=1", "--cpus-per-task=2", "--time=10")
    bench.until(lambda: len({step[0] for step in bench.steps()}) == 2, 120)
    bench.lab.run("scancel", "--batch", "--signal=USR2", job)
    bench.until(lambda: bench.state_of(job) == "PENDING", 60)
    hold.unlink()
    bench.until(lambda: bench.state_of(job) == "COMPLETED", 240)
    assert "all 2 trials are committed" in next(bench.folder.glob("slurm-*.out")).read_text()
    bench.check(2, most_redone=2 * round((CHECKPOINT_S + 1) / 0.2))
