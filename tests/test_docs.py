"""The pages of docs/: what they show runs, their links lead somewhere, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.cli import app as app_module
from depthrate.orchestrator.cli.app import app
from depthrate.tasks.registry import registered_tasks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("atlas/*.md"), *ROOT.glob("*.md")])


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def load_declared() -> ModuleType:
    """Import docs/declared.py, which generates the tables of the pages."""
    spec = importlib.util.spec_from_file_location("declared", DOCS / "declared.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def anchor(heading: str) -> str:
    """The name that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_sweeps_are_valid() -> None:
    Path("wd.yaml").write_text(blocks("sweeps.md", "yaml")[0])
    assert "wd: 75 trials" in invoke("plan", "wd.yaml")
    Path("my_sweep.py").write_text(blocks("sweeps.md", "python")[0])
    assert "50 trials" in invoke("plan", "my_sweep.py:wd")
    Path("tuned.yaml").write_text(blocks("searches.md", "yaml")[0])
    assert "search: 5 studies of 20 proposals" in invoke("plan", "tuned.yaml")
    grid = "name: f\ntask: collapse\nparams: {arch: rn1}\ngrid: {depth: [2, 3], width: [16, 32]}\n"
    Path("fit.yaml").write_text(grid + blocks("fits.md", "yaml")[0])
    assert "f: 4 trials" in invoke("plan", "fit.yaml")


@pytest.mark.slow
def test_tasks_of_ones_own_and_the_store_in_python() -> None:
    for name, code in zip(("my_task", "spread"), blocks("tasks.md", "python"), strict=True):
        Path(f"{name}.py").write_text(code)
    sweep = "name: {0}\ntask: ./{1}\ngrid: {{depth: [2, 4]}}\nseeds: 2\nfit: [{{metric: {2}}}]\n"
    Path("own.yaml").write_text(sweep.format("own", "my_task.py:power_law", "nc1"))
    Path("spread.yaml").write_text(sweep.format("spread", "spread.py:spread", "spread"))
    assert "nc1" in invoke("run", "own.yaml", "--workers", "1")
    assert "spread" in invoke("run", "spread.yaml", "--workers", "1")
    namespace: dict[str, object] = {}
    exec(blocks("store.md", "python")[0].replace("results.sql(", "frame = results.sql("), namespace)
    assert list(namespace["frame"]["depth"]) == [2, 4]  # type: ignore[index]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        assert "://" not in link, f"{page.name} links to {link}: nothing here checks that it is still there"
        name, _, wanted = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if wanted:
            headings = re.findall(r"^#+ (.*)$", load_declared().expand(target.read_text()), re.MULTILINE)
            assert wanted in map(anchor, headings), f"{page.name} links to {link}"


def test_no_page_types_what_is_declared() -> None:
    """A parameter that stands in the first column of a table was typed; `features` is a table as well."""
    names = {name for task in registered_tasks().values() for name in task.schema} - {"features"}
    for page in DOCS.glob("*.md"):
        assert not names & set(re.findall(r"^\| `(\w+)`", page.read_text(), re.MULTILINE)), page.name


def test_contributing_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"`([\w/]+/[\w/.]*)`", text):
        assert (ROOT / name).exists(), f"CONTRIBUTING.md names {name}"


@pytest.mark.slow
def test_the_command_of_contributing_works(tiny_sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (body,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    name = "depthrate.orchestrator.cli.commands.count"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(app_module, "COMMANDS", (*app_module.COMMANDS, "count"))
    exec(body, vars(sys.modules[name]))
    invoke("run", str(tiny_sweep), "--workers", "1")
    assert invoke("count") == "4\n" and "Print how many trials are committed." in invoke("count", "-h")
    refused = CliRunner().invoke(app, ["count", "--store", "nowhere"])
    assert refused.exit_code == 2 and "nowhere" in refused.stderr


ROOM_TOPS = ("orchestrator", "tasks", "sweeps", "storage", "slurm", "docs", "benchmarks")


def test_contributing_has_a_line_for_every_room() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("```text\n")[1].split("```")[0]
    named, path = set(), [""] * 4
    for line in tree.splitlines():
        indent, name = re.fullmatch(r"( *)(\w+)/ +\S.*", line).groups()  # type: ignore[union-attr]
        path[len(indent) // 2] = name
        named.add("/".join(path[: len(indent) // 2 + 1]))
    files = [file for top in ROOM_TOPS for file in (ROOT / top).rglob("*") if file.suffix in (".py", ".yaml")]
    rooms = {str(file.parent.relative_to(ROOT)) for file in files if "tests/" not in str(file.relative_to(ROOT))}
    assert rooms == named - {"tests"}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs pip install 'depthrate[docs]'")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name, page in _expected(site).items():
        assert name in page, f"{name} is missing from the site"


def _expected(site: Path) -> dict[str, str]:
    """Text -> the page that must have it: every parameter, command and public name there is."""
    tasks, words, features, commands, python = (
        re.sub("<[^>]*>", "", (site / f"{page}.html").read_text())
        for page in ("tasks", "words", "progressive", "commands", "python")
    )
    expected = {name: tasks + words + features for task in registered_tasks().values() for name in task.schema}
    names = app_module.COMMANDS
    expected |= {f"depthrate {name}": commands for name in names}
    return expected | dict.fromkeys(depthrate.__all__, python)
