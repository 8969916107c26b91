"""The checks for the first hour on a GPU run on a CPU in small sizes, and resume."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def first_hour(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.first_hour", "--device", "cpu", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_parts_resume_to_a_result(tmp_path: Path) -> None:
    output = tmp_path / "first_hour.json"
    first_hour("-o", str(output))
    results = json.loads(output.read_text())
    expected = dict.fromkeys(("machine", "steps", "knee", "workers"), "measured") | {"halving": "skipped"}
    expected |= dict.fromkeys(("correctness", "bits", "memory"), "passed")
    assert {name: result["state"] for name, result in results.items()} == expected
    assert results["knee"]["trial_steps_per_second"].keys() == {"1", "2", "4", "8", "16"}
    del results["machine"]
    output.write_text(json.dumps(results))
    printed = first_hour("-o", str(output))
    started = [line.split(":")[0] for line in printed.splitlines() if "(at most" in line]
    assert started == ["machine"] and "bitwise equal: rn1, rn2, t11, mlp" in printed
    assert json.loads(output.read_text()).keys() == results.keys() | {"machine"}
