"""MLflow reads the store's values from `depthrate export --mlflow`."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app

TASK = """
import depthrate

@depthrate.task(version=1)
def falling(*, depth: int, seed: int = 0, context):
    curves = [{"step": step, "loss": 1 / (1 + step * depth)} for step in range(1200)]
    return {"metrics": [{"layer": layer, "step": 2, "nc1": 1 / (1 + layer)} for layer in range(depth + 1)], "curves": curves}
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(TASK)
    Path("s.yaml").write_text("name: s\ntask: ./own.py:falling\ngrid: {depth: [2, 3]}\n")
    assert CliRunner().invoke(app, ["run", "s.yaml", "--workers", "1"]).exit_code == 0
    return tmp_path


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="MLflow is installed")
def test_without_the_library_it_says_what_to_install(ran: Path) -> None:
    refused = CliRunner().invoke(app, ["export", "s", "runs", "--mlflow"])
    assert refused.exit_code == 2 and "pip install 'depthrate[mlflow]'" in refused.stderr


@pytest.mark.slow
def test_a_place_has_to_be_named(ran: Path) -> None:
    refused = CliRunner().invoke(app, ["export", "s"])
    assert refused.exit_code == 2 and "needs a folder or URL" in refused.stderr


@pytest.mark.slow
def test_mlflow_reads_parameters_and_metrics_by_step(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow 3 refuses folders
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    from mlflow.tracking import MlflowClient

    uri = (ran / "mlruns").as_uri()
    call = CliRunner().invoke
    first = call(app, ["export", "s", uri, "--mlflow"])
    assert first.exit_code == 0, first.output
    assert "wrote 2 runs to experiment 's'" in first.output
    assert "wrote 0 runs" in call(app, ["export", "s", uri, "--mlflow"]).output
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("s")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == ["depth=2", "depth=3"]
    run = runs["depth=3"]
    assert run.info.status == "FINISHED" and run.data.params["depth"] == "3"
    assert run.data.metrics["metrics/nc1"] == pytest.approx(1 / 4)
    history = client.get_metric_history(run.info.run_id, "curves/loss")
    assert [point.step for point in history] == list(range(1200)) and history[1].value == pytest.approx(1 / 4)
    client.set_terminated(run.info.run_id, status="KILLED")  # as an export that was cut off leaves it
    assert "wrote 1 runs" in call(app, ["export", "s", uri, "--mlflow"]).output
    assert len(client.search_runs([experiment.experiment_id])) == 2
