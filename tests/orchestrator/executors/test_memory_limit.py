"""Memory of packs and of workers, as `plan` and `run` report it."""

import json
import re
from pathlib import Path

import pytest

from depthrate.orchestrator.executors import machine
from tests.support.here import invoke


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 4 GB: 1.6 GB for each of two workers."""
    monkeypatch.setattr(machine, "main_memory_bytes", lambda: 4e9)


def test_plan_shows_peaks_and_limit(tiny_sweep: Path, tmp_path: Path, memory: None) -> None:
    arguments = ("plan", str(tiny_sweep), "--store", str(tmp_path / "store"), "--workers", "2")
    shown = invoke(*arguments)[1]
    assert "peak GB" in shown and "a worker may use 1.6 GB of memory" in shown
    planned = json.loads(invoke(*arguments, "--json")[1])
    assert planned["worker_memory_gb"] == 1.6
    assert all(0.3 < pack["predicted_memory_gb"] < 1.6 for pack in planned["packs"])


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_oversized_trial_is_refused(verb: str, tiny_sweep: Path, tmp_path: Path, memory: None) -> None:
    arguments = [verb, str(tiny_sweep), "--store", str(tmp_path / "store"), "--workers", "2", "--set", "width=9000"]
    code, output = invoke(*arguments)
    assert code == 2 and not (tmp_path / "store").exists()
    assert re.search(r"needs about \d+(\.\d+)? GB of memory on cpu .* may use 1\.6 GB. Set .*width at most \d+", output)
    most = re.search(r"width at most (\d+) \(now 9000\)", output)
    assert most is not None
    assert invoke("plan", *arguments[1:], "--set", f"width={most[1]}")[0] == 0


def test_one_worker_alone_has_more(tiny_sweep: Path, tmp_path: Path, memory: None) -> None:
    arguments = ("plan", str(tiny_sweep), "--store", str(tmp_path / "store"), "--set", "width=3500")
    assert [invoke(*arguments, "--workers", workers)[0] for workers in ("1", "2")] == [0, 2]
