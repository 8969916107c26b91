"""An executor from outside: a file of its own and an entry in the table are all it takes."""

from __future__ import annotations

import runpy
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
from outcomes import committed
from typer.testing import CliRunner

from depthrate.orchestrator.executors import registry
from depthrate.orchestrator.executors.base import (
    Executor,
    ExecutorEntry,
    ExecutorRequest,
    JobCounts,
    JobEnd,
    PackJob,
    Scheduler,
    SeenJobs,
)
from depthrate.orchestrator.executors.options import Option
from depthrate.orchestrator.worker.__main__ import StopFlag, run_job
from depthrate.storage.files.store import Store


class OneByOne(Executor):
    """Packs one after another in this process."""

    device, workers, capacity = "cpu", 1, 1

    def __init__(self, nice: int):
        self._nice = nice
        self._waiting: deque[PackJob] = deque()

    def sentence(self) -> str:
        return f"one by one, {self._nice} times nice"

    def submit(self, jobs: Sequence[PackJob]) -> None:
        self._waiting.extend(jobs)

    def running(self) -> dict[str, str]:
        return {}

    def poll(self, timeout_s: float) -> list[JobEnd]:
        if not self._waiting:
            return []
        job = self._waiting.popleft()
        run_job(job, StopFlag())
        return [JobEnd(job.attempt_id)]

    def stop(self) -> None: ...

    def close(self) -> None: ...


def open_one_by_one(request: ExecutorRequest) -> OneByOne:
    return OneByOne(request.options.executor_options["nice_level"])


TOY = ExecutorEntry(
    name="toy",
    open=open_one_by_one,
    options=(Option("nice_level", int, "How nice it is.", default=3, minimum=1),),
    scheduler=Scheduler(
        "TOY", lambda store, sweep: SeenJobs(JobCounts(2, 1, {"Play": 2}), []), lambda store, sweep: None
    ),
)


def test_it_runs_a_sweep_from_the_command_line(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli_file = Path(registry.__file__).parents[1] / "cli" / "app.py"
    monkeypatch.setitem(registry.EXECUTORS, "toy", TOY)
    app = runpy.run_path(str(cli_file))["app"]  # its options are declared when it is imported

    def call(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return result.output

    task = Path(__file__).parents[2] / "support/own_tasks.py"
    sweep = tmp_path / "s.yaml"
    sweep.write_text(f"name: s\ntask: {task}:power_law\nparams: {{exponent: 1.0}}\ngrid: {{depth: [1, 2, 4]}}\n")
    words = (str(sweep), "--store", folder.root, "--executor")
    helped = call("run", "--help")
    assert "--nice-level" in helped and "local, ray, slurm or toy" in helped
    assert "one by one" not in call("plan", *words, "toy")
    refused = call("run", *words, "local", "--nice-level", "7", code=2)
    assert "--nice-level goes with --executor toy; given: --executor local" in refused
    assert "toy workers end with their launch" in call("run", *words, "toy", "--detach", code=2)
    assert "one by one, 7 times nice" in call("run", *words, "toy", "--nice-level", "7")
    assert committed(folder) == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert "s: 2 TOY jobs wait (Play 2), 1 run" in call("status", "--store", folder.root)
    assert "launches of s stop" in call("cancel", "s", "--store", folder.root)
