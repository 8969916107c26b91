"""The papers' tasks are plugins: the core runs without them. `tests/test_architecture.py` checks what it imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.here import TINY
from tests.support.packages import install_copy


@pytest.mark.slow
def test_the_core_runs_without_them(tmp_path: Path) -> None:
    site = install_copy(tmp_path / "site", "tasks/papers")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))

    def call(*words: str, code: int = 0) -> str:
        environment = os.environ | {"PYTHONPATH": str(site), "DEPTHRATE_STORE": str(tmp_path / "store")}
        command = [sys.executable, "-m", "depthrate", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "collapse" in (listed := call("tasks")) and "words" not in listed
    call("run", "tiny.yaml", "--workers", "1")
    counts = "select count(*) as n from results where nc1 is not null"
    assert json.loads(call("query", counts, "--format", "json")) == [{"n": 4}]
    assert "wrote report.html" in call("report", "tiny")
