"""W&B's records hold the store's values after `depthrate export --wandb`."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
BLOCK = 32768


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(TASK)
    Path("s.yaml").write_text("name: s\ntask: ./own.py:falling\ngrid: {depth: [2, 3]}\n")
    assert CliRunner().invoke(app, ["run", "s.yaml", "--workers", "1"]).exit_code == 0
    return tmp_path


def records(path: Path) -> Iterator[Any]:
    """Yield W&B's records in a file: LevelDB's log of blocks, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts = (b"" if kind in (1, 2) else parts) + content[at + 7 : at + 7 + length]  # whole or first
        at += 7 + length
        if kind in (1, 4):  # whole or last
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record


def read_run(folder: Path) -> tuple[Any, dict[str, Any], list[dict[str, Any]], bool]:
    """Return a run, its config, its history, and whether it ended."""
    (path,) = folder.glob("*.wandb")
    found = list(records(path))
    (run,) = (record.run for record in found if record.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    history = [
        {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]
    return run, config, history, any(record.WhichOneof("record_type") == "exit" for record in found)


def test_without_the_client_it_says_what_to_install(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused = CliRunner().invoke(app, ["export", "s", "runs", "--wandb"])
    assert refused.exit_code == 2 and "--wandb needs the W&B client" in refused.stderr
    assert "Install it: pip install 'depthrate[wandb]'" in refused.stderr
    twice = CliRunner().invoke(app, ["export", "s", "runs", "--wandb", "--delta"])
    assert twice.exit_code == 2 and "--delta and --wandb are mutually exclusive" in twice.stderr


@pytest.mark.slow
def test_its_own_records_hold_parameters_and_metrics_by_step(ran: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'depthrate[wandb]'")
    call = CliRunner().invoke
    first = call(app, ["export", "s", "runs", "--wandb"])
    assert first.exit_code == 0, first.output
    assert "wrote 2 runs of project 's' to runs. Upload: wandb sync runs/wandb/offline-run-*" in first.output
    assert (
        "wrote 0 runs of project 's' to runs (2 already present)"
        in call(app, ["export", "s", "runs", "--wandb"]).output
    )
    folders = sorted((ran / "runs" / "wandb").glob("offline-run-*"))
    found = {run.display_name: (run, *rest) for run, *rest in map(read_run, folders)}
    assert sorted(found) == ["depth=2", "depth=3"]
    run, config, history, is_ended = found["depth=3"]
    assert run.project == "s" and config["depth"] == 3 and config["depthrate.trial_id"] == run.run_id and is_ended
    assert [row["_step"] for row in history] == list(range(1200))
    assert [row["curves/loss"] for row in history] == pytest.approx([1 / (1 + 3 * step) for step in range(1200)])
    assert [row["_step"] for row in history if "metrics/nc1" in row] == [2]
    assert history[2]["metrics/nc1"] == pytest.approx(1 / 4)
    (folders[0] / "depthrate-attempt").unlink()  # as an export that was cut off leaves it
    assert (
        "wrote 1 runs of project 's' to runs (1 already present)"
        in call(app, ["export", "s", "runs", "--wandb"]).output
    )
    assert len(list((ran / "runs" / "wandb").glob("offline-run-*"))) == 2
