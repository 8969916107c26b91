"""TensorBoard files hold the store's values."""

import struct
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

import depthrate
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.export.tensorboard import write_events

TASK = """
import depthrate

@depthrate.task(version=1)
def falling(*, depth: int, seed: int = 0, context):
    curves = [{"step": step, "loss": 1 / (1 + step * depth)} for step in range(3)]
    return {"metrics": [{"layer": layer, "step": 2, "nc1": 1 / (1 + layer)} for layer in range(depth + 1)], "curves": curves}
"""


def read(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Read an event file: records of protocol buffers, with their lengths and checksums around them."""
    steps, content = [], path.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(content[:8])
        event = Event.FromString(content[12 : 12 + length])
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_crc32c(content[12 : 12 + length])
        if event.HasField("summary"):
            steps.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
        else:
            assert event.file_version == "brain.Event:2"
        content = content[16 + length :]
    return steps


def test_what_was_written_is_read(tmp_path: Path) -> None:
    steps = [(0, {"curves/loss": 0.5}), (300, {"curves/loss": 0.25, "metrics/nc1": 3e-9})]
    write_events(tmp_path / "events", 1.8e9, steps)
    events = read(tmp_path / "events")
    assert [step for step, _ in events] == [0, 300] and events[1][1] == pytest.approx(steps[1][1])


@pytest.mark.slow
def test_without_the_library_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(TASK)
    Path("s.yaml").write_text("name: s\ntask: ./own.py:falling\ngrid: {depth: [2]}\n")
    call = CliRunner().invoke
    assert call(app, ["run", "s.yaml", "--workers", "1"]).exit_code == 0
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    refused = call(app, ["export", "s", "runs"])
    assert refused.exit_code == 2 and "pip install 'depthrate[tensorboard]'" in refused.stderr
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    refused = call(app, ["status", "s", "--prometheus", "s.prom"])
    assert refused.exit_code == 2 and "pip install 'depthrate[prometheus]'" in refused.stderr


@pytest.mark.slow
def test_a_sweep_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(TASK)
    Path("s.yaml").write_text("name: s\ntask: ./own.py:falling\ngrid: {depth: [2, 3]}\n")
    call = CliRunner().invoke
    assert call(app, ["export", "s.yaml", "runs", "--store", "."]).exit_code == 2, "nothing is there yet"
    assert call(app, ["run", "s.yaml", "--workers", "1"]).exit_code == 0
    for _ in range(2):
        assert "wrote 2 runs to runs" in call(app, ["export", "s", "runs"]).output
    (path,) = Path("runs/s/depth=3").iterdir()
    last = {"curves/loss": 1 / 7, "metrics/nc1": 1 / 4}
    events = read(path)
    assert [step for step, _ in events] == [0, 1, 2] and events[2][1] == pytest.approx(last)
    refused = call(app, ["export", "s", "sqlite:///x.db"])
    assert refused.exit_code == 2 and "has no search to write" in refused.stderr
    assert depthrate.open().sql("select count(*) from trials").fetchall() == [(2,)]


@pytest.mark.slow
def test_results_of_a_second_run_replace_those_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(TASK)
    Path("s.yaml").write_text("name: s\ntask: ./own.py:falling\ngrid: {depth: [2, 3]}\n")
    call = CliRunner().invoke
    launch, export = ["run", "s.yaml", "--workers", "1"], ["export", "s", "runs"]
    assert call(app, launch).exit_code == 0 and "wrote 2 runs" in call(app, export).output
    (first,) = Path("runs/s/depth=3").iterdir()
    Path("runs/s/depth=3/notes.txt").touch()
    assert call(app, ["trials", "rm", "--where", "depth = 3", "--yes"]).exit_code == 0
    time.sleep(1.1)  # names have whole seconds
    assert call(app, launch).exit_code == 0 and "wrote 2 runs" in call(app, export).output
    names = sorted(path.name for path in Path("runs/s/depth=3").iterdir())
    assert len(names) == 2 and names[1] == "notes.txt" and names[0] != first.name
