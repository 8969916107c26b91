"""TensorBoard and W&B read the store's values from what `depthrate export` writes."""

import json
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    curves = [{"step": step, "loss": 1 / (1 + step * depth)} for step in range(1200)]
    return {"metrics": [{"layer": layer, "step": 2, "nc1": 1 / (1 + layer)} for layer in range(depth + 1)], "curves": curves}
"""
RUN = ["run", "s.yaml", "--workers", "1"]
call = CliRunner().invoke


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep that was run."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        Path("own.py").write_text(TASK)
        Path("s.yaml").write_text("name: s\ntask: ./own.py:falling\ngrid: {depth: [2, 3]}\n")
        assert call(app, ["export", "s.yaml", "runs", "--store", "."]).exit_code == 2, "nothing is there yet"
        assert call(app, RUN).exit_code == 0
    return folder


@pytest.fixture
def ran(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the working folder."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("tensorboardX", "tensorboard", ["export", "s", "runs"]),
        ("wandb", "wandb", ["export", "s", "runs", "--wandb"]),
    ],
)
def test_a_missing_library_is_named(
    ran: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str, words: list[str]
) -> None:
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:  # another test's imports
        monkeypatch.setitem(sys.modules, name, None)
    refused = call(app, words)
    assert refused.exit_code == 2 and f"pip install 'depthrate[{extra}]'" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s"], "needs a folder or URL"),
        (["s", "sqlite:///x.db"], "has no search to write"),
        (["s", "runs", "--wandb", "--optuna"], "--optuna and --wandb are mutually exclusive"),
    ],
)
def test_exactly_one_destination(ran: Path, words: list[str], message: str) -> None:
    refused = call(app, ["export", *words])
    assert refused.exit_code == 2 and message in refused.stderr


# TensorBoard


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
def test_tensorboard_reads_metrics_by_step(ran: Path) -> None:
    for _ in range(2):
        assert "wrote 2 runs to runs" in call(app, ["export", "s", "runs"]).output
    (path,) = Path("runs/s/depth=3").iterdir()
    events = read(path)
    assert [step for step, _ in events] == list(range(1200))
    assert events[2][1] == pytest.approx({"curves/loss": 1 / 7, "metrics/nc1": 1 / 4})
    assert depthrate.open().sql("select count(*) from trials").fetchall() == [(2,)]


@pytest.mark.slow
def test_second_run_replaces_the_first(ran: Path) -> None:
    export = ["export", "s", "runs"]
    assert "wrote 2 runs" in call(app, export).output
    (first,) = Path("runs/s/depth=3").iterdir()
    Path("runs/s/depth=3/notes.txt").touch()
    assert call(app, ["trials", "rm", "--where", "depth = 3", "--yes"]).exit_code == 0
    time.sleep(1.1)  # names have whole seconds
    assert call(app, RUN).exit_code == 0 and "wrote 2 runs" in call(app, export).output
    names = sorted(path.name for path in Path("runs/s/depth=3").iterdir())
    assert len(names) == 2 and names[1] == "notes.txt" and names[0] != first.name


# W&B

BLOCK = 32768


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


@pytest.mark.slow
def test_wandb_records_parameters_and_metrics(ran: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'depthrate[wandb]'")
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
