"""The README is true: its sweep, Python, commands and queries work."""

import re
import tomllib
from pathlib import Path

import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import find_sweep_file, sweeps_in_folder
from tests.support.here import printed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_snippets_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook, own_task = blocks("python")
    Path("my_task.py").write_text(own_task)
    text = "name: own\ntask: ./my_task.py:power_law\ngrid: {depth: [2, 4, 8, 16]}\nseeds: 4\nfit: [{metric: nc1}]\n"
    Path("own.yaml").write_text(text)
    assert "nc1" in printed("run", "own.yaml", "--workers", "1")
    namespace: dict[str, object] = {}
    exec(notebook.replace("depthrate.open(", "frame = depthrate.open("), namespace)
    assert list(namespace["frame"]["depth"]) == [2, 4, 8, 16]  # type: ignore[index]
    assert "depth" in printed("query", re.findall(r'depthrate query "(.*)"', README)[0])


def test_the_sweep_file_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wd.yaml").write_text(blocks("yaml")[0])
    assert "wd: 75 trials" in printed("plan", "wd.yaml")


def test_sweeps_that_the_prose_runs_exist() -> None:
    pages = [*(ROOT / name for name in ("README.md", "LOG.md", "CONTRIBUTING.md")), *(ROOT / "docs").rglob("*.md")]
    written = {name for page in pages for name in re.findall(r"^name: (\S+)", page.read_text(), re.MULTILINE)}
    calls = {
        (page.name, name)
        for page in pages
        for name in re.findall(
            r"depthrate (?:run|plan|show) ([a-z][\w./-]*\w)", page.read_text().replace("atlas/FIGURE", "FIGURE")
        )
        if not name.endswith((".yaml", ".py")) and name.partition(".")[0] not in written and not sweeps_in_folder(name)
    }
    assert len(calls) > 15
    gone = []
    for page, name in sorted(calls):
        try:
            find_sweep_file(name)
        except SweepError as error:
            gone.append(f"{page}: {error}"[:100])
    assert gone == []


def test_each_picture_is_there_for_light_and_dark() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    light = [picture for picture in pictures if not picture.endswith("-dark.png")]
    assert len(light) == 1 == README.count("prefers-color-scheme: dark")
    assert sorted(pictures) == sorted([*light, *(f"{picture[:-4]}-dark.png" for picture in light)])
    for picture in pictures:
        assert (ROOT / picture).read_bytes().startswith(b"\x89PNG"), picture


def test_commands_of_setup_and_tests_stand_alone() -> None:
    first, *_, tests = blocks("bash")
    for command in (first, tests):
        assert command.startswith("python3 -m venv .venv && ") and len(re.split(r"(?<!&)\n", command.strip())) == 1
    assert ".venv/bin/depthrate run quickstart" in first
    assert len(re.findall(r"^pip install.*pytest", README, re.MULTILINE)) == 1  # the line that .ci/run executes
    assert ".[all]" in README


def test_extra_all_names_all_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"\[(.*)\]", extras.pop("all")[0])
    assert sorted(named.split(",")) == sorted(extras)


@pytest.mark.slow
def test_printed_lines_are_those_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shape = [line.split()[0] for line in blocks("text")[0].splitlines() if line.strip() and not line.startswith("...")]
    printed_lines = printed("run", "quickstart").splitlines()
    assert shape == [line.split()[0] for line in printed_lines if line.strip() and not re.match(r"\d+/15 ", line)]
