"""What is written for TensorBoard is read by another implementation as what the store holds."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import depthrate
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.export.tensorboard import crc32c, event_file

TASK = """
import depthrate

@depthrate.task(version=1)
def falling(*, depth: int, seed: int = 0, context):
    curves = [{"step": step, "loss": 1 / (1 + step * depth)} for step in range(3)]
    return {"metrics": [{"layer": layer, "step": 2, "nc1": 1 / (1 + layer)} for layer in range(depth + 1)], "curves": curves}
"""


def test_the_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283 and crc32c(bytes(32)) == 0x8A9136AA


def read(content: bytes) -> list[tuple[int, dict[str, float]]]:
    """Read an event file with the protocol buffers of tensorboardX."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="comes with ray[tune] of depthrate[dev]")
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = event_pb2.Event.FromString(content[12 : 12 + length])
        if event.HasField("summary"):
            found.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
        else:
            assert event.file_version == "brain.Event:2"
        content = content[16 + length :]
    return found


def test_another_implementation_reads_it() -> None:
    steps = [(0, {"curves/loss": 0.5}), (300, {"curves/loss": 0.25, "metrics/nc1": 3e-9})]
    found = read(event_file(1.8e9, steps))
    assert [step for step, _ in found] == [0, 300] and found[1][1] == pytest.approx(steps[1][1])


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
    found = read(path.read_bytes())
    assert [step for step, _ in found] == [0, 1, 2] and found[2][1] == pytest.approx(last)
    refused = call(app, ["export", "s", "sqlite:///x.db"])
    assert refused.exit_code == 2 and "has no search to copy" in refused.stderr
    assert depthrate.open().sql("select count(*) from trials").fetchall() == [(2,)]


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
