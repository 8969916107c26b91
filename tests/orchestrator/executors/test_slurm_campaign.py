"""A sweep whose launch runs in a job, on a cluster that takes five jobs of a user and has a bad quarter of an hour."""

import json
import os
import time
from collections.abc import Iterator

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from tests.support.slurm_bench import CHECKPOINT_S, Bench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
MOST, STEPS, STEP_S = 5, 10, 0.1
PACKS = int(os.environ.get("DEPTHRATE_TEST_PACKS") or 48)
"""Packs of the sweep. Use 200 for the long form."""
DOWN_S = 25.0


@pytest.fixture
def limited(bench: Bench) -> Iterator[Bench]:
    """A sweep on a cluster that takes five jobs of a user, waiting and running together."""
    bench.lab.limit_submitted(MOST)
    yield bench
    bench.lab.limit_submitted(None)
    for node in bench.lab.node_names:
        bench.lab.resume_node(node)


def test_a_launch_in_a_job_outlives_all_that_goes_wrong(limited: Bench) -> None:
    bench = limited
    bad, begun = bench.folder / "bad", time.monotonic()
    bench.profile |= {"array_parallelism": 50, "grace_s": 10}  # packs of one trial; the limit holds all the same
    bench.profile["setup"] = [f'[ "$SLURMD_NODENAME" != "$(cat {bad} 2>/dev/null)" ] || exit 7']
    bench.sweep(params={"steps": STEPS, "step_s": STEP_S}, grid={"depth": list(range(2, 2 + PACKS))})
    assert len(json.loads(bench.run("plan", "--json"))["packs"]) == PACKS
    launch = bench.submit_script("slurm", "--time=60")

    def drivers_node() -> str:
        bench.until(lambda: bench.state_of(launch) == "RUNNING", 120)
        return bench.lab.run("squeue", "--noheader", f"--jobs={launch}", "--format=%N").strip()

    def until_done(share: float) -> None:
        bench.until(lambda: len(bench.steps()) >= share * PACKS * STEPS, 600)
        print(f"{time.monotonic() - begun:.0f} s: {share:.0%} of the steps", bench.queue())

    until_done(0.1)
    fails = next(node for node in bench.lab.node_names if node != drivers_node())
    bad.write_text(fails)  # from here on every job that comes there ends at once
    until_done(0.25)
    dies = drivers_node()
    bench.lab.kill_node(dies)
    print(f"{fails} fails, {dies} with the launch is down")
    until_done(0.4)
    second = ["unshare", "--uts", "sh", "-c", 'hostname login2; exec "$@"', "sh"]
    from_elsewhere = bench.wait(bench.start("--detach", within=second))
    print("from a second login node:", from_elsewhere)
    until_done(0.5)
    bench.lab.stop_controller()
    time.sleep(DOWN_S)
    bench.lab.start_controller()
    most, before, at_most = 0, list[tuple[str, str, str]](), list[tuple[str, str, str]]()
    deadline = time.monotonic() + 1800
    while (queue := bench.queue()) or bench.status()["ok"] < PACKS:
        # SLURM lists ended jobs until their node is clean, and a restarted controller may count a moment less
        live_jobs = [(launch, "", ""), *(job for job in queue if job[1] != "COMPLETING")]
        if most < min(len(live_jobs), len(before)):
            most, at_most = min(len(live_jobs), len(before)), live_jobs
        before = live_jobs
        assert bench.state_of(launch) not in ("FAILED", "CANCELLED"), bench.status()
        assert time.monotonic() < deadline, (queue, bench.status())
        time.sleep(2)
    took_s = time.monotonic() - begun
    steps = [step[:3] for step in bench.steps()]
    ends = results_of(bench.store).sql("select state, error_kind, count(*) from attempts group by all").fetchall()
    print(f"{took_s:.0f} s, at most {most} jobs, {len(steps) - len(set(steps))} steps twice of {len(steps)}; {ends}")
    assert most <= MOST, at_most
    bench.run("run")  # takes what is over off the books
    lost_with_a_node = 2 * round((CHECKPOINT_S + 1) / STEP_S)  # of the two packs that it may have run
    bench.check(PACKS, most_redone=2 * lost_with_a_node)
