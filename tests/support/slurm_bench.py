"""A sweep on a cluster of the tests' own: its store, the command line, what every scenario looks at."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.app import app
from depthrate.storage.files.store import Store
from tests.support.slurm_lab import Lab, patience

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md"
TASKS = Path(__file__).parent / "steady_task.py"
CHECKPOINT_S = 2.0


class Bench:
    """A sweep on the cluster, its store, and the command line."""

    def __init__(self, lab: Lab, folder: Path):
        self.lab, self.folder = lab, folder
        self.url, self.trace = folder / "store", folder / "trace"
        self.store = Store(str(self.url))
        self.name = "s" + folder.name.replace("_", "")[-12:]
        self.profile: dict[str, Any] = {"mem_gb": 0.8, "walltime_min": 10, "array_parallelism": 4, "grace_s": 4}
        self.profile["failed_start_s"] = 2
        self.environment: dict[str, str] = {}
        """Of the commands, beyond what leads them to the cluster."""

    def sweep(self, task: str = "steady", **spec: Any) -> None:
        """Write the sweep file."""
        content: dict[str, Any] = {"name": self.name, "task": f"{TASKS}:{task}", **spec}
        if task == "steady":
            content["params"] = {"trace": str(self.trace), **content.get("params", {})}
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(content))

    def measure(self, **spec: Any) -> None:
        """Run a small sweep here, so that costs are known from then on and jobs get several packs each."""
        self.sweep(**spec)
        local = [sys.executable, "-m", "depthrate", "run", str(self.folder / "sweep.yaml"), "--store", str(self.url)]
        subprocess.run(local, check=True, capture_output=True)

    def command(self, verb: str, *options: str) -> list[str]:
        """Return a command line."""
        command = [sys.executable, "-m", "depthrate", verb, "--store", str(self.url), *options]
        if verb in ("run", "plan"):
            lines = [f"{key} = {json.dumps(value)}" for key, value in self.profile.items()]
            (self.folder / "cluster.toml").write_text("\n".join(lines))
            command += [str(self.folder / "sweep.yaml")]
            command += ["--checkpoint-seconds", str(CHECKPOINT_S)] if verb == "run" else []
            command += ["--executor", "slurm", "--cluster", str(self.folder / "cluster.toml")]
        return command

    def all_variables(self) -> dict[str, str]:
        """Return the whole environment of a command."""
        return {**os.environ, **self.lab.environment, "COLUMNS": "200", **self.environment}

    def wrap(self, program: str, script: str) -> None:
        """Put a script in front of one of SLURM's programs, which it calls as $REAL."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        real = shutil.which(program, path=self.lab.environment["PATH"])
        (folder / program).write_text(f"#!/bin/bash\nREAL={real}\n{script}\n")
        (folder / program).chmod(0o755)
        self.environment["PATH"] = f"{folder}:{self.lab.environment['PATH']}"

    def submit_script(self, executor: str, *options: str) -> str:
        """Submit the batch script of the guide that runs this executor with further options of sbatch; return the job."""
        (script,) = [
            text for text in re.findall(r"```bash\n(#!.*?)```", PAGE.read_text(), re.DOTALL) if executor in text
        ]
        words = shlex.join(self.command("run")[3:])
        for given, here in (
            (r"depthrate run wd.yaml .* --executor slurm --cluster my_cluster.toml", f"depthrate {words}"),
            (
                r"depthrate run wd.yaml .* --executor ray",
                f"depthrate {words.partition(' --executor')[0]} --executor ray",
            ),
        ):
            script = re.sub(given, here, script)
        (self.folder / "launch.sh").write_text(script)
        path = f"{self.environment.get('PATH', self.lab.environment['PATH'])}:{Path(sys.executable).parent}"
        done = subprocess.run(
            ["sbatch", "--parsable", f"--job-name=launch-{self.name}", *options, "launch.sh"],
            env=self.all_variables() | {"PATH": path},
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=True,
        )
        return done.stdout.strip()

    def state_of(self, job: str) -> str:
        """Return the state of a job that need not be one of the sweep."""
        return self.lab.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def start(self, *options: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start `depthrate run`, as an argument of the command `within` if there is one."""
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": self.folder}
        return subprocess.Popen([*within, *self.command("run", *options)], env=self.all_variables(), **output)

    def run(self, verb: str, *options: str, code: int = 0) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            self.command(verb, *options),
            env=self.all_variables(),
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def wait(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """Wait for a launch to end and return what it printed."""
        printed, _ = process.communicate(timeout=200 * patience())
        assert process.returncode == code, printed
        return printed

    def until(self, is_so: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until something is so, on a busy machine for longer."""
        began = time.monotonic()
        while not is_so():
            took_s = time.monotonic() - began
            assert took_s < seconds * patience(), f"not within {took_s:.0f} s; {self.queue()}"
            time.sleep(0.2)

    def steps(self) -> list[tuple[str, ...]]:
        """Return (depth, seed, step, node) of each step that was done."""
        return [tuple(line.split()) for line in self.trace.read_text().splitlines()] if self.trace.exists() else []

    def queue(self) -> list[tuple[str, str, str]]:
        """Return (job, state, node) of this sweep's jobs that are not over."""
        listed = self.lab.run("squeue", "--noheader", "--array", "--format=%i %T %N %j")
        rows = [line.split() for line in listed.splitlines() if f"depthrate-{self.name}-" in line]
        return [(row[0], row[1], row[2] if len(row) == 4 else "") for row in rows]

    def job_names(self) -> list[str]:
        """Return the names of this sweep's jobs that are not over."""
        names = self.lab.run("squeue", "--noheader", "--array", "--format=%j").split()
        return [name for name in names if name.startswith(f"depthrate-{self.name}-")]

    def status(self) -> dict[str, Any]:
        """Return what `depthrate status --json` says, called in this process: no other command is needed as often."""
        with patch.dict(os.environ, self.all_variables(), clear=True):
            words = ["status", "--store", str(self.url), "--json", self.name]
            result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        (state,) = json.loads(result.stdout)
        return dict(state)

    def check(self, num_trials: int, most_redone: int | None = None) -> None:
        """Check what must hold after everything."""
        rows = sum(pq.read_metadata(self.store.full_path(path)).num_rows for path in self.store.list("trials"))
        ids = results_of(self.store).sql("select count(*), count(distinct trial_id) from trials").fetchall()
        assert rows == num_trials and ids == [(num_trials, num_trials)], "every trial is committed once"
        state = self.status()
        assert state["ok"] == num_trials and state["running"] == state["pending"] == state["failed"] == 0
        assert not self.store.list("jobs") and not self.store.list("checkpoints"), "nothing is left on the books"
        if most_redone is not None:
            steps = [step[:3] for step in self.steps()]
            assert len(steps) - len(set(steps)) <= most_redone, Counter(steps).most_common(5)
