"""Messages about wrong input: each names the value, what is allowed, and the cure."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.console.tables import FILE_WIDTH, print_rows
from depthrate.orchestrator.launch import supervisor
from depthrate.storage.files.store import Store

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


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2 and not result.stdout, result.output
    return result.stderr


def planned(text: str) -> str:
    Path("s.yaml").write_text(text)
    return refusal("plan", "s.yaml")


def test_an_argument_without_annotation() -> None:
    Path("t.py").write_text(TASK.replace("x: float = 1.0", "x"))
    message = planned("name: s\ntask: ./t.py:law\ngrid: {depth: [2]}\n")
    assert "'x' has no annotation" in message and "`x: float = 1.0`" in message and "None;" not in message


def test_a_filter_that_ends_too_early() -> None:
    message = planned('name: s\ntask: ./t.py:law\ngrid: {depth: [2, 3, 4]}\nfit: [{metric: nc1, where: "depth >"}]\n')
    assert "'depth >'" in message and 'near ">"' in message and '")"' not in message


def test_a_tab_in_yaml() -> None:
    message = planned("name: s\ntask: ./t.py:law\ngrid:\n\tdepth: [2]\n")
    assert "line 4" in message and "tab" in message and "spaces" in message


def test_a_number_beyond_the_largest() -> None:
    message = planned("name: s\ntask: ./t.py:law\nparams: {x: 1e308}\ngrid: {depth: [2]}\n")
    assert "1e+308" in message and "below 1e+300" in message


def test_missing_task_file_is_named_once(here: Path) -> None:
    message = planned("name: s\ntask: ./missing.py:law\ngrid: {depth: [2]}\n")
    assert message.count("missing.py") == 1 and str(here / "missing.py") in message


def test_every_mistake_of_a_sweep_is_reported() -> None:
    params = "{arch: rn9, widht: 3, lr: -1, dataset: digits}"
    message = planned(f"name: s\ntask: collapse\nparams: {params}\ngrid: {{depth: [2, -3]}}\n")
    for part in ("'widht'", "'width'", "'rn9'", "'lr' is -1", "'depth' is -3"):
        assert part in message
    message = planned("name: s\ntask: ./t.py:law\ngrid: {depth: [2]}\nseedz: 1\nfitt: []\n")
    assert "'seedz'" in message and "'fitt'" in message


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
    message = refusal(*arguments)
    assert (guess in message and "did you mean" in message) if guess else "did you mean" not in message


def test_a_folder_with_control_characters_is_shown_escaped(here: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(here / "\x1b[31mred")])
    assert result.exit_code == 0 and "\x1b" not in result.output and "\\x1b[31mred" in result.output


def test_a_node_in_a_store_without_write_permission(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthrate.orchestrator.cli.commands import nodes

    Path("s.yaml").write_text("name: s\ntask: ./t.py:law\ngrid: {depth: [2]}\n")
    assert CliRunner().invoke(app, ["run", "s.yaml", "--store", folder.url, "--workers", "1"]).exit_code == 0

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(nodes, "write_cleared", refuse)
    (host,) = nodes.read_records(folder, nodes.take_snapshot(folder), sweep="s")
    message = refusal("nodes", "s", "--clear", str(host["host"]), "--store", folder.url)
    assert "Permission denied" in message and "PermissionError" not in message and folder.url in message


def test_failed_write_with_free_space(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota is not in the file system's free space."""

    entry = SimpleNamespace(beat={"needs_bytes": 176_000})

    class Full(supervisor.AttemptSupervisor):
        def __init__(self) -> None:
            self._store, self.running = folder, {"a": entry}  # type: ignore[dict-item]

    noted: list[str] = []
    monkeypatch.setattr(supervisor, "log_event", lambda _, text, **__: noted.append(text))
    monkeypatch.setattr(supervisor, "free_bytes", lambda _: 5_710_000)
    Full()._check_store()
    assert "a write failed although 5.71 MB are free" in noted[0] and "176 kB" in noted[0]


def test_a_piped_table_has_a_width() -> None:
    console = Console(file=io.StringIO(), width=100_000)
    columns, row = [f"column {number}" for number in range(60)], ["x" * 9] * 60
    print_rows(console, columns, [row], more="--wide")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= FILE_WIDTH and "more columns" in lines[-1] and "--wide" in lines[-1]
