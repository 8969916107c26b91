"""The package of docs/how-to/plugins.md, with a task, an exporter and an executor, works where it is installed."""

import csv
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.packages import write_metadata

PAGE = (Path(__file__).parents[1] / "docs/how-to/plugins.md").read_text()
(PROJECT,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MODULES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
SWEEP = "name: swings\ntask: pendulum\ngrid: {depth: [1, 2, 3]}\nfit: [{metric: period_error, x: depth}]\n"
Call = Callable[..., str]


def write_package(folder: Path) -> None:
    (folder / "depthrate_pendulum").mkdir(parents=True)
    for name, code in {"depthrate_pendulum/__init__.py": "", **MODULES}.items():
        (folder / name).write_text(code)


def caller(site: Path, work: Path) -> Call:
    """Return a function that calls depthrate with a folder of packages, in processes of their own."""
    (work / "s.yaml").write_text(SWEEP)

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "depthrate", *words],
            env=os.environ | {"PYTHONPATH": str(site), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            cwd=work,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


@pytest.fixture
def call(tmp_path: Path) -> Call:
    site = tmp_path / "site"
    write_package(site)
    write_metadata(site, "depthrate_pendulum", tomllib.loads(PROJECT)["project"]["entry-points"])
    return caller(site, tmp_path)


def test_each_of_the_three_is_short() -> None:
    assert len(MODULES) == 3 and max(len(code.splitlines()) for code in MODULES.values()) <= 36


@pytest.mark.slow
def test_task_runs_and_exporter_writes(call: Call, tmp_path: Path) -> None:
    assert "all 3 trials are committed" in call("run", "s.yaml", "--workers", "1")
    assert "wrote 3 rows to rows.csv" in call("export", "swings", "rows.csv", "--rows")
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["task"] for row in rows} == {"pendulum"}
    errors = {row["depth"]: float(row["period_error"]) for row in rows}
    assert errors["1"] > errors["2"] > errors["3"] >= 0


def test_its_executor_runs_the_sweep(call: Call) -> None:
    assert "local, ray, slurm or inline" in " ".join(call("run", "--help").split())
    assert "this process" in call("run", "s.yaml", "--executor", "inline")


@pytest.mark.slow
def test_pip_installs_it(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="needs pip install 'setuptools>=77'")
    source, site = tmp_path / "source", tmp_path / "site"
    write_package(source)
    (source / "pyproject.toml").write_text(PROJECT)
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    command = [sys.executable, "-m", "pip", "install", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    call = caller(site, tmp_path)
    assert "pendulum" in call("tasks")
    assert "all 3 trials are committed" in call("run", "s.yaml", "--executor", "inline")
