"""What a plan says of hours before a task's first run, what --pilot makes of it, and what a job is billed for."""

from pathlib import Path

import pytest

from depthrate.orchestrator.executors.slurm.submitter import JOB_OVERHEAD_S, job_durations_s
from depthrate.slurm.profile import Profile
from tests.support.here import answer, printed, refused

TASK = """
import depthrate, time

@depthrate.task(version=1)
def sleepy(*, depth: int, seed: int = 0, context):
    time.sleep(0.2)
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}
"""


@pytest.mark.slow
def test_pilot_runs_one_pack(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(TASK)
    lines = ["name: s", f"task: {tmp_path}/sleepy.py:sleepy", "grid: {depth: [1, 2]}", "seeds: 8"]
    (tmp_path / "s.yaml").write_text("\n".join(lines))
    given = [tmp_path / "s.yaml", "--store", tmp_path / "store", "--workers", "1"]
    assert "hours: unknown. To measure them on one pack: depthrate run SWEEP --pilot" in printed("plan", *given)
    probed = printed("run", *given, "--pilot")
    assert "pilot run of 1 pack finished. s: 16 trials, 4 done" in probed
    assert "core-hours" in probed and "based on the last measured pack" in probed
    assert "run the rest: depthrate run" in probed and "--pilot" not in probed.split("run the rest")[1]
    after = answer("plan", *given)
    assert after["num_done"] == 4 and 12 * 0.2 <= 3600 * after["estimated_core_hours"] < 12 * 2
    assert "Leave out --detach" in refused("run", *given, "--pilot", "--detach")


@pytest.mark.parametrize(
    ("seconds", "profile", "expected"),
    [
        ([600.0] * 4, Profile(gpus=2, job_min=30, array_parallelism=1), [1200.0]),  # two GPUs, two packs each
        ([600.0, 10.0], Profile(gpus=2, job_min=0, array_parallelism=1), [600.0]),  # a GPU idles beside the long one
        ([5.0] * 3, Profile(job_min=0, array_parallelism=3), [5.0, 5.0, 5.0]),
    ],
)
def test_job_is_held_until_its_last_pack(seconds: list[float], profile: Profile, expected: list[float]) -> None:
    assert job_durations_s(seconds, seconds, profile) == [JOB_OVERHEAD_S + item for item in expected]
    assert job_durations_s([1, 2], [1.0, None], profile) is None
