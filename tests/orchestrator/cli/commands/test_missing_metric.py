"""A fit of a metric that a task without declared metrics never returns: said after the first pack, and exit code 2."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from tests.support.here import refused

pytestmark = pytest.mark.slow
TASK = """import depthrate
@depthrate.task(version=1)
def t(*, depth: int, width: int = 1, seed: int = 0):
    row = {"layer": depth, "nc1": 1 / depth, "val/loss": 1 / depth, "empty": None, "early": None}
    return {"metrics": [{"layer": 0, "early": 1.0 / depth}, row], "curves": [{"step": 1, "loss": 1.0}]}
"""
SWEEP = "name: s\ntask: ./t.py:t\ngrid: {depth: [1, 2, 4, 8]}\nfit: [%s]\n"


@pytest.mark.parametrize(
    ("fit", "code", "message"),
    [
        ("{metric: nc1}", 0, ""),
        ("{metric: val/loss}", 0, ""),
        ("{metric: early, layer: 0}", 0, ""),
        ("{metric: loss}", 0, ""),
        ("{metric: nc11}, {metric: nc1}", 2, "no metric 'nc11' in the trials of a requested fit (did you mean 'nc1'?)"),
        ("{metric: val/los}", 2, "no metric 'val/los' in the trials of a requested fit (did you mean 'val/loss'?)"),
        ("{metric: empty}", 2, "no metric 'empty' in the trials of a requested fit"),
    ],
)
def test_a_metric_that_no_trial_has(fit: str, code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TASK)
    (tmp_path / "s.yaml").write_text(SWEEP % fit)
    command = [str(tmp_path / "s.yaml"), "--store", str(tmp_path / "store")]
    ran = CliRunner().invoke(app, ["run", *command, "--workers", "1"], catch_exceptions=False)
    assert ran.exit_code == code and "all 4 trials are committed" in ran.output, ran.output
    fitted = CliRunner().invoke(app, ["fit", *command], catch_exceptions=False)
    assert fitted.exit_code == code
    for output in (ran.output, fitted.output):
        assert message in " ".join(output.split()) and ("no metric" in output) == bool(message)
    if message:
        first_pack = " ".join(ran.output.split("all 4 trials")[0].split())
        assert message in first_pack, "it is said while the sweep runs"


@pytest.mark.parametrize(
    ("fit", "name"), [("{metric: nc1, x: dpth}", "depth"), ("{metric: nc1, by: [widht]}", "width")]
)
def test_a_misspelt_parameter_is_refused_before_anything_runs(fit: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TASK)
    (tmp_path / "s.yaml").write_text(SWEEP % fit)
    message = refused("run", tmp_path / "s.yaml", "--store", tmp_path / "store")
    assert f"did you mean {name!r}?" in message and not (tmp_path / "store").exists()
