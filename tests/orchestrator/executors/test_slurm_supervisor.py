"""The supervisor job: its options, its restarts, and the nodes that it excludes because it cannot start on them."""

import json
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.executors.base import ExecutorRequest
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.executors.slurm import remote_launch
from depthrate.orchestrator.executors.slurm.remote_launch import (
    OPTIONS_FILE,
    RELAUNCH_DELAYS_S,
    Supervisor,
    run_supervisor,
)
from depthrate.slurm.cluster_limits import Limits, Partition
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import FAILED_STARTS, START_MARKER, batch_script, read_failed_starts
from depthrate.storage.files.store import Store
from depthrate.sweeps.spec import SweepSpec

LIMITS = Limits("lab", 101, 2000, {"main": Partition("main", True, True, 120.0, 8, 16.0, 2, nodes=4)})


def test_it_is_told_all_that_the_launch_was(folder: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: dict[str, Any] = {}

    def submit(profile: Profile, name: str, where: Path, function: Any, arguments: list[Any], **more: Any) -> list[str]:
        sent.update(profile=profile, arguments=arguments, **more)
        return ["7"]

    monkeypatch.setattr(remote_launch, "submit_array", submit)
    monkeypatch.setattr(remote_launch, "jobs_of_sweep", lambda *_: ([], {}))
    (tmp_path / "c.toml").write_text("gpus = 2")
    base_options = LaunchOptions(
        sweep="s.yaml",
        executor="slurm",
        executor_options={"cluster": str(tmp_path / "c.toml"), "packs_per_gpu": 4},
        device="auto",
        workers=3,
        checkpoint_seconds=7.0,
        stall_minutes=1.5,
        set_=("depth=2",),
        engine="eager",
        notify="https://key",
        detach=True,
        rerun=True,
    )
    request = ExecutorRequest(sweep=SweepSpec(name="s", task="collapse"), store=folder, options=base_options)
    requested = Profile(
        gpus=2, packs_per_gpu=4, credentials="/keys", supervisor_partition="main", container="x.sif", python="p"
    )
    sent_on = replace(base_options, device="cuda", code_version="c0de", data="/data")
    assert Supervisor(request, requested, LIMITS).send_launch(sent_on).job_id == "7"
    ((where,),) = sent["arguments"]
    inside = LaunchOptions.from_json((Path(where) / OPTIONS_FILE).read_text())
    spec, cluster = Path(where) / "sweep.yaml", Path(where) / "cluster.toml"
    assert json.loads(spec.read_text())["name"] == "s" and cluster.read_text() == "gpus = 2"
    assert inside == LaunchOptions(
        sweep=str(spec),
        store=folder.address,
        executor="slurm",
        executor_options={"cluster": str(cluster), "packs_per_gpu": 4},
        device="auto",
        workers=3,
        checkpoint_seconds=7.0,
        stall_minutes=1.5,
        set_=[],
        code_version="c0de",
        data="/data",
    ), "as requested, except for options handled here or part of the sweep file"
    profile = sent["profile"]
    assert (profile.slots, profile.gpus, profile.credentials, profile.walltime_min) == (1, 0, "/keys", 120)
    assert (profile.container, profile.python) == (None, None)
    assert sent["elsewhere"] == 3, "each node but one may be bad"


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[float]]:
    """Run the job with launches that end with these codes, and return for how long it paused in between."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(remote_launch.signal, "signal", lambda *_: None)

    def run(*base_options: int) -> list[float]:
        left, pauses = list(base_options), []

        class Launch:
            def __init__(self, *_: object, **__: object) -> None:
                pass

            def wait(self) -> int:
                return left.pop(0)

        monkeypatch.setattr(remote_launch.subprocess, "Popen", Launch)
        monkeypatch.setattr(remote_launch.InnerLaunch, "_sleep", lambda self, seconds: pauses.append(seconds))
        (tmp_path / OPTIONS_FILE).write_text(LaunchOptions(data="/data").to_json())
        monkeypatch.setenv(START_MARKER, str(tmp_path / "begun"))
        run_supervisor([str(tmp_path)])
        assert not left and (tmp_path / "begun").exists()
        return pauses

    return run


def test_it_begins_anew_where_the_cluster_was_not_there_or_it_was_killed(codes: Callable[..., list[float]]) -> None:
    assert codes(0) == codes(1) == [], "all is done, or some trials were given up"
    assert codes(2, -9, 0) == list(RELAUNCH_DELAYS_S[:2])
    assert codes(2, 2, 2, 2, 2) == list(RELAUNCH_DELAYS_S), "a launch that is always refused ends some time"


@pytest.mark.parametrize(
    ("code", "has_begun", "before", "is_sent"),
    [(7, False, 0, True), (7, True, 0, False), (0, False, 0, False), (143, False, 0, False), (7, False, 3, False)],
)
def test_on_a_node_where_it_cannot_begin_it_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, has_begun: bool, before: int, is_sent: bool
) -> None:
    pytest.importorskip("submitit")
    programs, jobs = tmp_path / "bin", tmp_path / "jobs of mine"
    programs.mkdir()
    jobs.mkdir()
    for name, script in {
        "srun": f"exit {code}",
        "sbatch": f'echo "$@ $SLURM_MEM_PER_NODE $SLURM_CONF" > {tmp_path}/sent',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    script = batch_script(Profile(exclude=("n9",), failed_start_s=0), "x", 1, jobs, elsewhere=3)
    for name, value in {"JOB_ID": "7", "MEM_PER_NODE": "1", "CONF": "conf"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    (jobs / "avoided").write_text("n1\n" * before)
    if has_begun:
        (jobs / "begun-7-0").touch()
    (jobs / FAILED_STARTS).mkdir()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    sent = (tmp_path / "sent").read_text() if (tmp_path / "sent").exists() else ""
    assert sent == (f"--exclude=n9,n2 {jobs}/submission.sh  conf\n" if is_sent else ""), done.stderr
    reports = [(job_id, state.node, state.exit_code) for job_id, state, _ in read_failed_starts(jobs)]
    assert reports == ([("7", "n2", 7)] if code == 7 and not has_begun else []), "only a failure before it began"
