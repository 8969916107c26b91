"""`plan` finds before the training what could not be stored or fitted after it."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app

SWEEP = "name: s\ntask: collapse\nparams: {arch: rn1, dataset: digits, width: 8, steps: 5}\n"


def plan(folder: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", str(folder / "s.yaml"), "--store", str(folder / "store"), *arguments])
    return result.exit_code, result.output


def test_a_store_without_permission_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {{depth: [2, 3]}}\n")
    assert plan(tmp_path)[0] == 0
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    code, output = plan(tmp_path)
    assert code == 2 and f"no permission to write to {tmp_path}" in output


@pytest.mark.parametrize(
    ("grid", "fit", "is_thin"),
    [
        ("{depth: [2, 3]}", "{metric: nc1, x: depth}", True),
        ("{depth: [2, 3, 5]}", "{metric: nc1, x: depth}", False),
        ("{depth: [2]}", "{metric: nc1, x: depth}", True),
        ("{depth: [2, 3, 5], lr: [0.1, 0.2]}", "{metric: nc1, x: depth, by: [lr]}", False),
        ("{depth: [2, 3, 5], lr: [0.1, 0.2]}", "{metric: nc1, x: lr, by: [depth]}", True),
        ("{depth: [2, 3, 5]}", "{metric: nc1, x: depth // 2 + 1}", True),
    ],
)
def test_a_fit_over_too_few_values_is_remarked_on(tmp_path: Path, grid: str, fit: str, is_thin: bool) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {grid}\nfit: [{fit}]\n")
    code, output = plan(tmp_path, "--json")
    remarks = json.loads(output)["remarks"]
    assert code == 0 and len(remarks) == is_thin and all("Use 3 or more" in remark for remark in remarks)
    assert ("Use 3 or more" in plan(tmp_path)[1]) == is_thin
