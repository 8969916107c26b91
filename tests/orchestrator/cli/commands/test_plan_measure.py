"""`depthrate plan --measure`: a row per measured shape, and no trace in the store."""

from pathlib import Path

import pytest

from depthrate.orchestrator.api import planning
from tests.support.here import answer, invoke, printed, refused

SWEEP = """
name: s
task: collapse
params: {arch: rn1, dataset: digits, samples_per_class: 4, width: 8, steps: 5}
grid: {depth: [1, 2, 3, 5], lr: [0.1, 0.2]}
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "SIDE_S", 0.01)
    (tmp_path / "s.yaml").write_text(SWEEP)
    return tmp_path / "s.yaml"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def measured_depths(output: str) -> list[str]:
    """Return the last cell of each row of the table of measured shapes."""
    lines = output.split("plain PyTorch loop:")[1].splitlines()
    return [line.split()[-1] for line in lines if " native " in line or " eager " in line]


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_a_row_per_measured_shape(sweep: Path, engine: str) -> None:
    plan = ("plan", sweep, "--store", sweep.parent / "store", "--engine", engine, "--measure")
    before = files(sweep.parent)
    few = printed(*plan, "--set", "depth=[3,2]")
    assert measured_depths(few) == ["2", "3"], "the fastest first, without what a pack shares"
    assert " shapes, fastest first" not in few and "based on the measured steps" in few
    many = printed(*plan)
    assert measured_depths(many) == ["1", "3", "5"] and "measured: 3 of 4 shapes" in many
    assert max(len(line) for line in many.split("plain PyTorch loop:")[1].splitlines()[:8]) <= 80
    found = answer(*plan)
    pack_ids = {pack["pack_id"] for pack in found["packs"]}
    assert found["num_shapes"] == 4 and len(found["measured"]) == 3
    assert {row["pack"] for row in found["measured"]} < pack_ids
    assert {row["engine"] for row in found["measured"]} == {pack["engine"] for pack in found["packs"]}
    assert found["measured_core_hours"] > 0
    assert files(sweep.parent) == before, "nothing is written"


def test_an_exhausted_half_minute_leaves_shapes_out(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_START_S", 0.0)
    output = printed("plan", sweep, "--store", sweep.parent / "store", "--measure")
    assert measured_depths(output) == ["1"] and "measured: 1 of 4 shapes" in output


def test_what_cannot_be_measured_is_refused(sweep: Path, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    (tmp_path / "law.py").write_text(
        "import depthrate\n@depthrate.task()\ndef law(*, depth: int):\n    return {'metrics': [{'layer': depth, 'nc1': 1.0}]}\n"
    )
    (tmp_path / "law.yaml").write_text(f"name: law\ntask: {tmp_path}/law.py:law\nparams: {{depth: 2}}\n")
    code, output = invoke("plan", tmp_path / "law.yaml", *store, "--measure")
    assert code == 2 and "steps of task law:law cannot be measured" in output
    assert "--measure takes one sweep" in refused("plan", tmp_path, *store, "--measure")
    printed("run", sweep, *store, "--set", "depth=1", "--workers", "1", "--engine", "eager")
    done = printed("plan", sweep, *store, "--set", "depth=1", "--measure")
    assert "nothing was measured, because no trial is pending" in done


def test_another_device_is_not_measured(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthrate.orchestrator.executors.local import LocalExecutor

    monkeypatch.setattr(LocalExecutor, "is_local", False)
    code, output = invoke("plan", sweep, "--store", sweep.parent / "store", "--measure")
    assert code == 2 and "--measure takes steps on a CPU core of this machine" in output and "--pilot" in output


def test_a_plan_estimates_rates(sweep: Path) -> None:
    plan = ("plan", sweep, "--store", sweep.parent / "store")
    rates = [pack["estimated_steps_per_s"] for pack in answer(*plan)["packs"]]
    assert rates == sorted(rates) and rates[0] > 0, "the longest pack, the deepest network, is first"
    assert "trial-steps/s on one core" in printed(*plan)
    mixed = printed(*plan, "--set", "optimizer=[sgd,adamw]")
    assert "4 of 8 packs train natively" in mixed and "4 of 8 packs train eagerly, because optimizer is adamw" in mixed
