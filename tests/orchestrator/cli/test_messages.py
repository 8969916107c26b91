"""Messages about wrong input: each names the value, what is allowed, and the cure."""

import json
from pathlib import Path

import pytest

from depthrate.storage.files.store import Store
from tests.support.here import printed, refused

TASK = """
import depthrate

@depthrate.task(version=1)
def law(*, depth: int, x: float = 1.0):
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth}]}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text(TASK)
    return tmp_path


def planned(text: str) -> str:
    Path("s.yaml").write_text(text)
    return refused("plan", "s.yaml")


LAW = "name: s\ntask: ./t.py:law\ngrid: {depth: [2, 3, 4]}\n"


@pytest.mark.parametrize(
    ("sweep", "pieces", "absent"),
    [
        (f'{LAW}fit: [{{metric: nc1, where: "depth >"}}]\n', ["'depth >'", 'near ">"'], '")"'),
        ("name: s\ntask: ./t.py:law\ngrid:\n\tdepth: [2]\n", ["line 4", "tab", "spaces"], "Traceback"),
        (f"{LAW}params: {{x: 1e308}}\n", ["1e+308", "below 1e+300"], "Traceback"),
        (f"{LAW}seedz: 1\nfitt: []\n", ["'seedz'", "'fitt'"], "Traceback"),
        (
            "name: s\ntask: collapse\nparams: {arch: rn9, widht: 3, lr: -1, dataset: digits}\ngrid: {depth: [2, -3]}\n",
            ["'widht'", "'width'", "'rn9'", "'lr' is -1", "'depth' is -3"],
            "Traceback",
        ),
    ],
)
def test_mistakes_of_a_sweep_are_named(sweep: str, pieces: list[str], absent: str) -> None:
    message = planned(sweep)
    assert all(piece in message for piece in pieces) and absent not in message


@pytest.mark.parametrize("task", ["./a\0b.py:f", "./a\x1bb.py:f", "a\0b", "pack\0age:f"])
def test_task_name_without_valid_characters(task: str) -> None:
    assert "unprintable characters" in planned(json.dumps({"name": "s", "task": task, "grid": {"depth": [2]}}))


def test_an_argument_without_annotation() -> None:
    Path("t.py").write_text(TASK.replace("x: float = 1.0", "x"))
    message = planned(LAW)
    assert "'x' has no annotation" in message and "`x: float = 1.0`" in message and "None;" not in message


def test_missing_task_file_is_named_once(here: Path) -> None:
    message = planned("name: s\ntask: ./missing.py:law\ngrid: {depth: [2]}\n")
    assert message.count("missing.py") == 1 and str(here / "missing.py") in message


@pytest.mark.parametrize(
    ("arguments", "guess"),
    [
        (("plan", "nosuch.yaml"), None),
        (("plan", "quickstat"), "'quickstart'"),
        (("plan", "buu.yaml"), "'bu.yaml'"),
        (("runn", "quickstart"), "'run'"),
        (("xyzzy",), None),
    ],
)
def test_guesses_are_near(arguments: tuple[str, ...], guess: str | None) -> None:
    Path("bu.yaml").touch()
    message = refused(*arguments)
    assert (guess in message and "did you mean" in message) if guess else "did you mean" not in message


def test_a_folder_with_control_characters_is_shown_escaped(here: Path) -> None:
    output = printed("init", here / "\x1b[31mred")
    assert "\x1b" not in output and "\\x1b[31mred" in output


def test_a_node_in_a_store_without_write_permission(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthrate.orchestrator.cli.commands import nodes

    Path("s.yaml").write_text("name: s\ntask: ./t.py:law\ngrid: {depth: [2]}\n")
    printed("run", "s.yaml", "--store", folder.url, "--workers", "1")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(nodes, "write_cleared", refuse)
    (host,) = nodes.read_records(folder, nodes.take_snapshot(folder), sweep="s")
    message = refused("nodes", "s", "--clear", str(host["host"]), "--store", folder.url)
    assert "Permission denied" in message and "PermissionError" not in message and folder.url in message
