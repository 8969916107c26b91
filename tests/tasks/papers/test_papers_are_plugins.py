"""The papers' tasks are plugins: the core imports none of them, and runs where they are not installed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.here import TINY
from tests.support.packages import FOLDERS, ROOT, install_copy

PAPERS = "depthrate.tasks.papers"


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere, for types too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_core_imports_no_task_of_a_paper() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    core = [path for path in files if ROOT / "tasks/papers" not in path.parents]
    assert len(files) - len(core) > 20
    assert not [path for path in core if any(name.startswith(PAPERS) for name in imports_of(path))]


@pytest.mark.slow
def test_the_core_runs_without_them(tmp_path: Path) -> None:
    site = install_copy(tmp_path / "site", "tasks/papers")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))

    def call(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "depthrate", *words],
            env=os.environ | {"PYTHONPATH": str(site), "DEPTHRATE_STORE": str(tmp_path / "store")},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "collapse" in (listed := call("tasks")) and "words" not in listed
    call("run", "tiny.yaml", "--workers", "1")
    counts = "select count(*) as n from results where nc1 is not null"
    assert json.loads(call("query", counts, "--format", "json")) == [{"n": 4}]
    assert "wrote report.html" in call("report", "tiny")
